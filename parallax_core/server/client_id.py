"""Identifies the client that sent a request."""

from __future__ import annotations

from starlette.datastructures import Headers
from starlette.types import Scope

from parallax_core.contracts.node_service import JoinedMachine
from parallax_core.server.api_keys import digest_key

JOINED_MACHINE = "joined_machine"
"""The name of a request's machine in its state, if it came over the link of a machine that has joined."""
CALLER = "caller"
"""The name in that state of the id of a client without an API key, which an authenticator knows."""


def read_key(scope: Scope) -> str:
    """Return the key of ``Authorization: Bearer KEY``, else of Anthropic's ``X-Api-Key``; empty: neither was sent."""
    headers = Headers(scope=scope)
    scheme, _, key = headers.get("authorization", "").partition(" ")
    return key.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", "").strip()


def find_joined_machine(scope: Scope) -> JoinedMachine | None:
    """Return the machine that has joined and forwarded a request; None: the request came over a socket."""
    found: JoinedMachine | None = scope.get("state", {}).get(JOINED_MACHINE)
    return found


def identify(scope: Scope, *, by_key: bool) -> bytes:
    """Return an id of the client: its key, or what an authenticator knows, if keys are checked, else its address.

    Any client could make up a key that is not checked. Without keys, the clients of a machine that has joined count as
    one. The id begins with its kind: a machine may be called ``127.0.0.1``.
    """
    if by_key:
        caller: str = scope.get("state", {}).get(CALLER, "")
        return b"caller:" + caller.encode() if caller else b"key:" + digest_key(read_key(scope))
    if machine := find_joined_machine(scope):
        return b"machine:" + machine.name.encode()
    client = scope.get("client")
    return b"address:" + str(client[0] if client else "").encode()

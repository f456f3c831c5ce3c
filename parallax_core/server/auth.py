"""Checks the API key of each request against the role its route needs."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from parallax_core.contracts.node_service import JoinedMachine
from parallax_core.contracts.surface import Authenticator, KnownClient
from parallax_core.server.api_keys import ApiKeys, Role
from parallax_core.server.client_id import CALLER, find_joined_machine, read_key
from parallax_core.server.error_body import error_body
from parallax_core.server.route_roles import RouteRoles

logger = logging.getLogger(__name__)

OPEN_PATHS = frozenset({"/health", "/ready", "/version"})
"""The paths that need no key, for supervisors and load balancers."""


class KeyCheck:
    """Middleware that requires a key, or a client that an authenticator knows, whose role allows the route.

    A missing or unknown key gets a 401; a role that does not allow the route gets a 403. Routes find the role in the
    state of the request, as ``role``. Without keys, clients of this machine are administrators, and so are those of a
    machine that may take over from it; those of other machines that have joined are users, who may also see the nodes
    and the models.
    """

    def __init__(self, app: ASGIApp, keys: ApiKeys, roles: RouteRoles, authenticators: Iterable[Authenticator]) -> None:
        self._app = app
        self._authenticators = authenticators
        self._roles = roles
        self._keys = keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        needed = self._roles.find(scope["path"], scope["method"]) if scope["type"] == "http" else None
        if needed is None:
            await self._app(scope, receive, send)
            return
        machine = None if self._keys.are_needed else find_joined_machine(scope)
        guest = None if machine is None or machine.may_serve else machine
        role = "user" if guest else self._find_role(scope)
        if guest and scope["method"] == "GET" and self._roles.shows_guests(scope["path"]):
            needed = "user"
        if role is None:
            body = error_body(
                401, "no valid API key: send 'Authorization: Bearer KEY' or 'X-Api-Key: KEY'", code="invalid_api_key"
            )
            await JSONResponse(body, 401, {"WWW-Authenticate": "Bearer"})(scope, receive, send)
        elif role not in {needed, "admin"}:
            await JSONResponse(_refuse(needed, role, guest), 403)(scope, receive, send)
        else:
            scope.setdefault("state", {})["role"] = role
            await self._app(scope, receive, send)

    def _find_role(self, scope: Scope) -> Role | None:
        """Return the role of a key, or, without a key, of a client that an authenticator knows."""
        if (key := read_key(scope)) or not self._keys.are_needed:
            return self._keys.find_role(key)
        for number, authenticator in enumerate(self._authenticators):
            if (caller := _ask(authenticator, scope)) is not None and self._has_key(caller):
                scope.setdefault("state", {})[CALLER] = f"{number}:{caller.id}"
                return caller.role
        return None

    def _has_key(self, caller: KnownClient) -> bool:
        """Return whether the key of a client is accepted and allows as much, or the client is known without one."""
        return caller.key is None or self._keys.find_digest_role(caller.key) in {caller.role, "admin"}


def _ask(authenticator: Authenticator, scope: Scope) -> KnownClient | None:
    """Return the client that an authenticator knows; one of a plugin may raise anything, and lets no one in by that."""
    try:
        return authenticator.authenticate(scope)
    except Exception:
        logger.exception("an authenticator failed")
        return None


def _refuse(needed: Role, role: Role, guest: JoinedMachine | None) -> dict[str, Any]:
    """Return the error body for a client whose role does not allow the route."""
    if guest is None:
        message = f"this needs an API key of the role '{needed}', and yours has the role '{role}'"
        return error_body(403, message, code="insufficient_permissions")
    message = f"clients of machine {guest.name!r} are users, and this needs the role '{needed}'"
    if guest.key:
        hint = f"if they should have it: `parallax keys allow {guest.key.hex()} {guest.name} --role any`"
    else:
        hint = "run it"
    return error_body(403, message, code="machine_not_trusted", hint=f"{hint} on the server's machine")

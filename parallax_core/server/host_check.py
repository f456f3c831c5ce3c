"""Checks the ``Host`` header against the names of the server."""

from __future__ import annotations

import re
from collections.abc import Collection

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from parallax_core.server.auth import OPEN_PATHS
from parallax_core.server.error_body import error_body

HOST = re.compile(r"(\[[^\[\]]*\]|[^:\[\]]*)(?::[0-9]*)?")
"""A name or an address, with an optional port (RFC 9110, section 7.2)."""


class HostCheck:
    """Middleware that answers 403 to a request whose ``Host`` is not a name of this server.

    It prevents DNS rebinding: a web page can let the name of its own site resolve to 127.0.0.1 and then use this server
    as if it were its own, but it cannot change the name that the browser sends.
    """

    def __init__(self, app: ASGIApp, hosts: Collection[str]) -> None:
        self._app = app
        self._hosts = frozenset(map(normalize_host, hosts))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if (
            scope["type"] != "http"
            or scope["path"] in OPEN_PATHS
            or self._is_ours(Headers(scope=scope).getlist("host"))
        ):
            await self._app(scope, receive, send)
            return
        message = "'Host' is not a name of this server; allow it with --set allowed_host=NAME, or connect to 127.0.0.1"
        await JSONResponse(error_body(403, message, code="host_not_allowed"), 403)(scope, receive, send)

    def _is_ours(self, given: list[str]) -> bool:
        return "*" in self._hosts or (len(given) == 1 and read_host(given[0]) in self._hosts)


def read_host(header: str) -> str:
    """Return the name in a ``Host`` header, without its port; empty if the header is invalid."""
    found = HOST.fullmatch(header.strip())
    return normalize_host(found[1]) if found else ""


def normalize_host(name: str) -> str:
    """Return the normal spelling of a name: ``::1`` for ``[::1]``, and ``localhost`` for ``LOCALHOST.``."""
    return name.removeprefix("[").removesuffix("]").removesuffix(".").lower()

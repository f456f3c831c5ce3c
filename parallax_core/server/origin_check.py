"""Refuses requests of web pages whose origin is not allowed."""

from __future__ import annotations

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from parallax_core.server.error_body import error_body
from parallax_core.server.options import ServerOptions
from parallax_core.server.route_roles import RouteRoles

READING = frozenset({"GET", "HEAD", "OPTIONS"})
READ_ONLY = (
    "pages only look at a server that others reach without a key; start it with --api-key-file, or use a command"
)


class OriginCheck:
    """Middleware that answers 403 to a POST from a web page whose origin is not allowed.

    A browser prevents such a page from reading answers, but still sends some of its requests, such as those without a
    body. (Fetch Standard, "CORS-safelisted request-header"; only browsers send ``Origin``, and pages cannot change it.)

    On a server that others reach without a key, pages change nothing that would need the role ``admin``. Routes find
    that as ``is_read_only`` in the state of a request.
    """

    def __init__(self, app: ASGIApp, options: ServerOptions, roles: RouteRoles) -> None:
        self._app = app
        self._origins = options.cors_origins
        self._is_read_only = options.is_exposed
        self._roles = roles

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        scope.setdefault("state", {})["is_read_only"] = self._is_read_only
        if self._is_read_only and self._is_change_of_page(scope):
            await JSONResponse(error_body(403, READ_ONLY, code="read_only"), 403)(scope, receive, send)
            return
        if scope["method"] != "POST" or self._is_welcome(Headers(scope=scope)):
            await self._app(scope, receive, send)
            return
        message = "web pages of this origin may not use this server; allow them with --set cors_origin=ORIGIN"
        await JSONResponse(error_body(403, message, code="origin"), 403)(scope, receive, send)

    def _is_change_of_page(self, scope: Scope) -> bool:
        is_change = scope["method"] not in READING and "origin" in Headers(scope=scope)
        return is_change and self._roles.find(scope["path"], scope["method"]) == "admin"

    def _is_welcome(self, headers: Headers) -> bool:
        origin = headers.get("origin")
        return origin is None or is_own_origin(headers) or origin in self._origins or "*" in self._origins


def is_own_origin(headers: Headers) -> bool:
    """Return whether a request comes from a page of this server itself."""
    return headers.get("origin") in {f"{scheme}://{headers.get('host')}" for scheme in ("http", "https")}

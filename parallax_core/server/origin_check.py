"""Refuses requests of web pages whose origin is not allowed."""

from __future__ import annotations

from collections.abc import Collection

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from parallax_core.server.error_body import error_body


class OriginCheck:
    """Middleware that answers 403 to a POST from a web page whose origin is not allowed.

    A browser prevents such a page from reading answers, but still sends some of its requests, such as those without a
    body. (Fetch Standard, "CORS-safelisted request-header"; only browsers send ``Origin``, and pages cannot change it.)
    """

    def __init__(self, app: ASGIApp, origins: Collection[str]) -> None:
        self._app = app
        self._origins = origins

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] != "http" or scope["method"] != "POST" or self._is_welcome(Headers(scope=scope)):
            await self._app(scope, receive, send)
            return
        message = "web pages of this origin may not use this server; allow them with --set cors_origin=ORIGIN"
        await JSONResponse(error_body(403, message, code="origin"), 403)(scope, receive, send)

    def _is_welcome(self, headers: Headers) -> bool:
        origin = headers.get("origin")
        return origin is None or is_own_origin(headers) or origin in self._origins or "*" in self._origins


def is_own_origin(headers: Headers) -> bool:
    """Return whether a request comes from a page of this server itself."""
    return headers.get("origin") in {f"{scheme}://{headers.get('host')}" for scheme in ("http", "https")}

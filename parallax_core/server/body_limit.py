"""Limits the size of a request's body."""

from __future__ import annotations

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from parallax_core.server.error_body import error_body


class BodyLimit:
    """Middleware that answers 413 to a body over the limit as soon as it is known to be, and stops reading it."""

    def __init__(self, app: ASGIApp, limit: int) -> None:
        self._app = app
        self._limit = limit
        self._message = f"the body has more than {limit} bytes; the server's max_body limits it"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        stated = headers.get("content-length", "")
        if stated and "transfer-encoding" in headers:  # a proxy may have used the other one
            body = error_body(400, "the request has both Content-Length and Transfer-Encoding")
            await JSONResponse(body, 400, {"Connection": "close"})(scope, receive, send)
            return
        if stated.isdecimal() and int(stated) > self._limit:
            await JSONResponse(error_body(413, self._message), 413)(scope, receive, send)
            return
        await self._app(scope, self._count(receive), send)

    def _count(self, receive: Receive) -> Receive:
        seen = 0

        async def counted() -> Message:
            nonlocal seen
            message = await receive()
            seen += len(message.get("body", b""))
            if seen > self._limit:
                raise HTTPException(413, self._message)
            return message

        return counted

"""Limits the time a client may take to send its request."""

from __future__ import annotations

import asyncio

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from parallax_core.base.errors import SHUTTING_DOWN
from parallax_core.server.drain import GO_AWAY, Drain


class ReadTimeout:
    """Middleware that answers 408 to a client that sends its body too slowly, or 503 if the server drains meanwhile."""

    def __init__(self, app: ASGIApp, drain: Drain, limit_s: float) -> None:
        self._app = app
        self._drain = drain
        self._limit_s = limit_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        deadline, is_whole = asyncio.get_running_loop().time() + self._limit_s, False

        async def hurry() -> Message:
            nonlocal is_whole
            if is_whole:  # the caller waits for the end of the connection
                return await receive()
            try:
                message = await self._drain.receive_until(receive, deadline)
            except TimeoutError:
                if self._drain.is_closed:
                    raise HTTPException(503, SHUTTING_DOWN, GO_AWAY) from None
                raise HTTPException(408, f"the request did not arrive within {self._limit_s:g} seconds") from None
            is_whole = not message.get("more_body", False)
            return message

        await self._app(scope, hurry, send)

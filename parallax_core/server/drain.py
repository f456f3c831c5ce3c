"""Drains the server before it stops: refuses new requests, and lets running ones end."""

from __future__ import annotations

import asyncio

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from parallax_core.base.errors import SHUTTING_DOWN
from parallax_core.server.error_body import error_body

GO_AWAY = {"Retry-After": "5", "Connection": "close"}


class Drain:
    """Counts the requests that use the model, and refuses more once it is closed."""

    def __init__(self) -> None:
        self._running = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._listeners: set[asyncio.Timeout] = set()
        self.is_closed = False

    async def drain(self, limit_s: float) -> None:
        """Refuse new requests, and wait until none is running, or for ``limit_s`` seconds.

        Requests that have not arrived completely end at once.
        """
        self.is_closed = True
        for listener in self._listeners:
            listener.reschedule(0)
        try:
            async with asyncio.timeout(limit_s):
                await self._idle.wait()
        except TimeoutError:
            return

    async def receive_until(self, receive: Receive, deadline: float) -> Message:
        """Return the client's next message, if it arrives before the drain and before ``deadline``.

        Args:
            receive: the request's channel.
            deadline: on the event loop's clock, in seconds.

        Raises:
            TimeoutError: if it does not.
        """
        if self.is_closed:
            raise TimeoutError(SHUTTING_DOWN)
        async with asyncio.timeout_at(deadline) as listener:
            self._listeners.add(listener)
            try:
                return await receive()
            finally:
                self._listeners.remove(listener)

    def enter(self) -> None:
        """Count a request."""
        self._running += 1
        self._idle.clear()

    def leave(self) -> None:
        """Stop counting a request."""
        self._running -= 1
        if not self._running:
            self._idle.set()


class DrainMiddleware:
    """Middleware that counts requests in a `Drain`, and answers 503 once that is closed."""

    def __init__(self, app: ASGIApp, drain: Drain) -> None:
        self._app = app
        self._drain = drain

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] != "http" or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        if self._drain.is_closed:
            await JSONResponse(error_body(503, SHUTTING_DOWN), 503, GO_AWAY)(scope, receive, send)
            return
        self._drain.enter()
        try:
            await self._app(scope, receive, send)
        finally:
            self._drain.leave()

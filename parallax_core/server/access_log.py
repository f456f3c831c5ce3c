"""Request ids, and the access log."""

from __future__ import annotations

import logging
import re
import secrets
import time
from collections.abc import Callable

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

logger = logging.getLogger(__name__)

REQUEST_ID = "X-Request-Id"
SOUND = re.compile(r"[\w.:/+=-]{1,128}", re.ASCII)
PROBED = frozenset({"/health", "/ready"})
"""Where a 503 is an answer, and no error."""
ERROR, GONE = 400, 499
MOST_LOGGED = 2000
"""The most bytes of a body that go into the log."""


class AccessLog:
    """Middleware that gives each request an id, sends it back, and logs one line when the response is over.

    A client's own id is kept if it is at most 128 characters that are safe in a log. What clients send and get is not
    logged, unless asked for.
    """

    def __init__(self, app: ASGIApp, count_error: Callable[[int], None], *, logs_bodies: bool = False) -> None:
        self._app = app
        self._count_error = count_error
        self._logs_bodies = logs_bodies

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = Headers(scope=scope).get(REQUEST_ID, "")
        name = given if SOUND.fullmatch(given) else secrets.token_hex(8)
        began, status, body = time.monotonic(), 0, bytearray()
        scope.setdefault("state", {}).update(request_id=name, arrived=began)

        async def watch() -> Message:
            message = await receive()
            if self._logs_bodies and len(body) < MOST_LOGGED:
                body.extend(message.get("body", b"")[: MOST_LOGGED - len(body)])
            return message

        async def tag(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)[REQUEST_ID] = name
            await send(message)

        try:
            await self._app(scope, watch, tag)
        finally:
            asked = f" body={bytes(body)!r}" if self._logs_bodies else ""
            took = (time.monotonic() - began) * 1000
            path = _read_path(scope)
            if status >= ERROR and status != GONE and path not in PROBED:
                self._count_error(status)
            logger.info("%s %s %s %.0f ms id=%s%s", scope["method"], path, status or "gone", took, name, asked)


def _read_path(scope: Scope) -> str:
    """Return the path as it was sent: decoded, it could hold the end of a line."""
    raw = scope.get("raw_path") or b""
    return str(raw.decode("ascii", "replace"))

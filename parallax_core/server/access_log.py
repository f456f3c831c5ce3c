"""Gives each request an id, and writes the access log."""

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
"""The paths whose 503 is a normal answer, not an error."""
ERROR, GONE = 400, 499
MOST_LOGGED = 2000
"""The largest number of bytes of a body that are logged."""


class AccessLog:
    """Middleware that gives each request an id, sends it back, and logs one line when the response is over.

    It keeps a client's own id if that is at most 128 characters, all safe in a log. It does not log the bodies of
    requests unless ``logs_bodies`` is true, and never those of responses.
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
    """Return the path as it was sent: a decoded one could contain line breaks."""
    raw = scope.get("raw_path") or b""
    return str(raw.decode("ascii", "replace"))

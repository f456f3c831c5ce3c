"""Decodes request bodies that clients have compressed."""

from __future__ import annotations

import asyncio
import zlib

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from parallax_core.api.dialect import error_body

GZIP, ZLIB, RAW = 16 + zlib.MAX_WBITS, zlib.MAX_WBITS, -zlib.MAX_WBITS
"""The formats of compressed data, as `zlib` numbers them."""
WINDOWS = {"gzip": (GZIP,), "x-gzip": (GZIP,), "deflate": (ZLIB, RAW)}
"""By content coding, the formats that a body may have: some clients send ``deflate`` without its header."""
PLAIN = {"", "identity"}
SMALL = 2**16
"""Bytes of a body that are decoded in less time than another thread takes to begin."""
UNSUPPORTED = 415


class ContentEncoding:
    """Middleware that decodes a compressed body, up to a limit of its decoded size; it answers 415 to other codings."""

    def __init__(self, app: ASGIApp, limit: int) -> None:
        self._app = app
        self._limit = limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        given = Headers(scope=scope).getlist("content-encoding") if scope["type"] == "http" else []
        codings = [each for each in (part.strip().lower() for part in ",".join(given).split(",")) if each not in PLAIN]
        if not codings:
            await self._app(scope, receive, send)
            return
        if len(codings) > 1 or codings[0] not in WINDOWS:
            message = f"the Content-Encoding {', '.join(codings)!r} is not supported: send gzip, deflate, or none"
            body = error_body(UNSUPPORTED, message, code="unsupported_encoding")
            await JSONResponse(body, UNSUPPORTED, {"Accept-Encoding": "gzip, deflate"})(scope, receive, send)
            return
        headers = [each for each in scope["headers"] if each[0] not in {b"content-encoding", b"content-length"}]
        await self._app({**scope, "headers": headers}, self._decode(receive, codings[0]), send)

    def _decode(self, receive: Receive, coding: str) -> Receive:
        is_sent = False

        async def decoded() -> Message:
            nonlocal is_sent
            if is_sent:
                return await receive()
            data, more = bytearray(), True
            while more:
                message = await receive()
                if message["type"] != "http.request":
                    return message
                data += message.get("body", b"")
                more = message.get("more_body", False)
            is_sent = True
            return {"type": "http.request", "body": await self._inflate(bytes(data), coding), "more_body": False}

        return decoded

    async def _inflate(self, data: bytes, coding: str) -> bytes:
        """Return a decoded body; a large one is decoded on another thread."""
        try:
            try:
                return inflate(data, coding, min(SMALL, self._limit))
            except OverflowError:
                return await asyncio.to_thread(inflate, data, coding, self._limit)
        except OverflowError:
            message = f"the decoded body has more than {self._limit} bytes; the server's max_body limits it"
            raise HTTPException(413, message) from None
        except (zlib.error, EOFError):
            raise HTTPException(400, f"the body is not valid {coding}, which its Content-Encoding says") from None


def inflate(data: bytes, coding: str, limit: int) -> bytes:
    """Return the decoded bytes.

    Raises:
        OverflowError: if they are more than ``limit``; no more than that are decoded.
        EOFError: if the data ends too early.
        zlib.error: if it is not valid.
    """
    first, *others = WINDOWS[coding]
    try:
        return _inflate(data, first, limit)
    except zlib.error:
        if not others:
            raise
        return _inflate(data, others[0], limit)


def _inflate(data: bytes, window: int, limit: int) -> bytes:
    found = bytearray()
    while data:  # gzip may have several members
        stream = zlib.decompressobj(window)
        found += stream.decompress(data, limit + 1 - len(found))
        if len(found) > limit:
            raise OverflowError
        if not stream.eof:
            raise EOFError
        data = stream.unused_data
    return bytes(found)

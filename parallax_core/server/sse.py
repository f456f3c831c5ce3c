"""Writes server-sent events."""

from __future__ import annotations

import asyncio
from time import monotonic
from types import TracebackType
from typing import Self

from starlette.types import Message, Send

COMMENT = b": keep-alive\n\n"
"""A comment (HTML standard, section 9.2.6): clients skip it, and it keeps proxies from timing out."""
SILENCE_S = 15.0
"""Seconds of silence after which a comment is sent; nginx, for example, closes a silent connection after 60 seconds."""


def write_named(name: str, data: bytes) -> bytes:
    """Return an event with a name, and with ``data``, which is JSON."""
    return b"event: %b\ndata: %b\n\n" % (name.encode(), data)


class KeepAlive:
    """Sends the messages of a stream and, while it is entered, ``sign`` after ``silence_s`` seconds of silence."""

    def __init__(self, send: Send, silence_s: float = SILENCE_S, sign: bytes = COMMENT) -> None:
        self._send = send
        self._sign = sign
        self._silence_s = silence_s
        self._one_at_a_time = asyncio.Lock()
        self._latest = monotonic()

    async def __aenter__(self) -> Self:
        """Start to watch for silence."""
        self._watching = asyncio.create_task(self._watch())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop watching."""
        self._watching.cancel()

    async def send(self, message: Message) -> None:
        """Send a message of the stream."""
        async with self._one_at_a_time:
            await self._send(message)
            self._latest = monotonic()

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(self._latest + self._silence_s - monotonic())
            async with self._one_at_a_time:  # else one could follow the end
                if monotonic() - self._latest >= self._silence_s:
                    await self._send({"type": "http.response.body", "body": self._sign, "more_body": True})
                    self._latest = monotonic()

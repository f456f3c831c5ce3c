"""Streams the answer of an engine that gives tokens, with the text that core makes of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

from parallax_core.base.errors import BackendFailed
from parallax_core.contracts.engine import Delta, Finish, Request, Stream
from parallax_core.engine.request_text import RequestText


class TextStream:
    """A stream with text. It ends at stop strings and when the request times out, and aborts the request then."""

    def __init__(self, stream: Stream, text: RequestText, on_end: Callable[[], None]) -> None:
        """Read ``stream``; ``on_end`` is called once, when the request has ended or was closed."""
        self._stream = stream
        self._text = text
        self._on_end = on_end
        self._is_over = False
        self._timer: asyncio.TimerHandle | None = None
        self._timed_out: Finish | None = None

    def limit_time(self, request: Request) -> None:
        """End the request when its timeout passes."""
        if request.timeout_s is not None:
            message = f"timed out after {request.timeout_s:g} seconds"
            wait_s = max(0.0, request.timeout_s - request.waited_s)
            self._timer = asyncio.get_running_loop().call_later(wait_s, self._expire, message)

    async def __aiter__(self) -> AsyncIterator[Delta]:
        """Yield the deltas up to and including the one with a finish; a stream that is closed ends at once."""
        async for delta in self._stream:
            shown = self._read(delta)
            if shown is None:
                continue
            if shown.finish is not None:
                self.close()
                yield shown
                return
            yield shown
        if self._timed_out is not None:
            yield Delta(finish=self._timed_out)

    def close(self) -> None:
        """Abort the request, unless it has ended."""
        self._end()
        self._stream.close()

    def _read(self, delta: Delta) -> Delta | None:
        """Return the delta with its text; one that ends the request if that fails."""
        try:
            return self._text.read(delta)
        except BackendFailed as error:
            return Delta(finish=self._text.finish("error", error.message))

    def _expire(self, message: str) -> None:
        self._timed_out = self._text.finish("timeout", message)
        self._end()
        self._stream.close()

    def _end(self) -> None:
        if not self._is_over:
            self._is_over = True
            if self._timer is not None:
                self._timer.cancel()
            self._on_end()

"""The stream of a request: its answers' chunks as deltas."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence

from parallax_backend_sglang.frames import Chunk
from parallax_core.api import Delta, Finish, Reason, Request


class AnswerStream:
    """See `parallax_core.api.Stream`. Belongs to one event loop."""

    def __init__(self, request: Request, numbers: Sequence[int], abort: Callable[[AnswerStream], None]) -> None:
        """Stream the answers to ``request``.

        Args:
            request: the request.
            numbers: the number of each answer, in the order of their indices.
            abort: called with the stream when it is closed before its end.
        """
        self.numbers = tuple(numbers)
        """The number of each answer, in the order of their indices."""
        self.is_over = False
        """Whether the last delta has been put."""
        self._indices = {number: index for index, number in enumerate(numbers)}
        self._unfinished = set(numbers)
        self._abort = abort
        self._queue: asyncio.Queue[Delta | None] = asyncio.Queue()
        self._prompt_tokens = len(request.prompt)
        self._output_tokens = 0
        self._cached_tokens: int | None = None

    async def __aiter__(self) -> AsyncIterator[Delta]:
        """Yield the deltas up to and including the one with a finish; a stream that is closed ends at once."""
        while (delta := await self._queue.get()) is not None:
            yield delta
            if delta.finish is not None:
                return

    def close(self) -> None:
        """Abort the request and end the iteration. Does nothing if it has ended or is closed."""
        if not self.is_over:
            self.is_over = True
            self._queue.put_nowait(None)
            self._abort(self)

    def put(self, chunk: Chunk) -> int:
        """Add the tokens of one answer; return the prompt tokens that this first shows to have been cached."""
        is_first, self._cached_tokens = self._cached_tokens is None, self._cached_tokens or 0
        cached = min(chunk.cached_tokens, self._prompt_tokens) if is_first else 0
        self._cached_tokens += cached
        self._output_tokens += len(chunk.tokens)
        if chunk.ended is not None:
            self._unfinished.discard(chunk.number)
        finish = None
        if chunk.ended is not None and (chunk.ended == "error" or not self._unfinished):
            finish = self._make_finish(chunk.ended, chunk.message)
            self.is_over = True
        self._queue.put_nowait(
            Delta(
                tokens=chunk.tokens,
                index=self._indices[chunk.number],
                logprobs=chunk.logprobs,
                prompt_logprobs=chunk.prompt_logprobs if is_first else (),
                ended=None if chunk.ended == "error" else chunk.ended,
                finish=finish,
                cached_tokens=cached,
            )
        )
        return cached

    def end(self, reason: Reason, message: str) -> None:
        """End the stream for a reason outside its answers."""
        if not self.is_over:
            self.is_over = True
            self._queue.put_nowait(Delta(finish=self._make_finish(reason, message)))

    def _make_finish(self, reason: Reason, message: str) -> Finish:
        return Finish(
            reason=reason,
            prompt_tokens=self._prompt_tokens,
            output_tokens=self._output_tokens,
            message=message,
            cached_tokens=self._cached_tokens or 0,
        )

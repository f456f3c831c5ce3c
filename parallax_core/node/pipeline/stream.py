"""Queues the deltas of one request between the engine and their reader."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

from parallax_core.contracts.engine import Delta, Finish
from parallax_core.node.pipeline.unread import UnreadOutput, weigh


class QueueStream:
    """A stream fed by an engine on the same event loop; an `UnreadOutput` bounds its unread deltas."""

    def __init__(self, abort: Callable[[], None], backlog: UnreadOutput | None = None) -> None:
        self._deltas: asyncio.Queue[tuple[Delta, int] | None] = asyncio.Queue()
        """Each delta with its bytes; None: the stream was closed."""
        self._abort = abort
        self._backlog = backlog or UnreadOutput()
        self._ended = False
        self.has_begun = False
        """Whether it was given a delta."""
        self.unread = 0
        """Bytes of unread deltas; `UnreadOutput` counts them."""

    def put(self, delta: Delta) -> None:
        """Add a delta; those after the one with a finish are ignored."""
        if not self._ended:
            self.has_begun = True
            self._ended = delta.finish is not None
            weight = weigh(delta)
            self._deltas.put_nowait((delta, weight))
            self._backlog.add(self, weight)

    async def __aiter__(self) -> AsyncIterator[Delta]:
        """Yield the deltas up to and including the one with a finish; a stream that is closed ends at once."""
        while (found := await self._deltas.get()) is not None:
            delta, weight = found
            self._backlog.take(self, weight)
            yield delta
            if delta.finish is not None:
                return

    def close(self) -> None:
        """Abort the request, unless it has ended, and drop the unread deltas."""
        self._drop()
        self._deltas.put_nowait(None)
        self._end()

    def cut(self, reason: str) -> None:
        """Abort the request, drop the unread deltas, and end with an error that gives the reason."""
        self._drop()
        message = f"the answer was given up: {reason}"
        finish = Finish(reason="timeout", prompt_tokens=0, output_tokens=0, message=message)
        self._deltas.put_nowait((Delta(finish=finish), 0))
        self._end()

    def _drop(self) -> None:
        while not self._deltas.empty():
            self._deltas.get_nowait()
        self._backlog.take(self, self.unread)

    def _end(self) -> None:
        if not self._ended:
            self._ended = True
            self._abort()

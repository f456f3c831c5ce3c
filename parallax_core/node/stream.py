"""The answer to one request, on its way from the engine to whoever reads it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

from parallax_core.contracts.engine import Delta


class QueueStream:
    """A stream fed by an engine on the same event loop."""

    def __init__(self, abort: Callable[[], None]) -> None:
        self._deltas: asyncio.Queue[Delta | None] = asyncio.Queue()
        self._abort = abort
        self._ended = False

    def put(self, delta: Delta) -> None:
        """Add a delta; after the one with a finish, nothing more is taken."""
        if not self._ended:
            self._ended = delta.finish is not None
            self._deltas.put_nowait(delta)

    async def __aiter__(self) -> AsyncIterator[Delta]:
        """Yield the deltas up to and including the one with a finish; a stream that is closed ends at once."""
        while (delta := await self._deltas.get()) is not None:
            yield delta
            if delta.finish is not None:
                return

    def close(self) -> None:
        """Abort the request, unless it has ended."""
        if not self._ended:
            self._ended = True
            self._deltas.put_nowait(None)
            self._abort()

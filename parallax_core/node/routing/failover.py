"""Streams the answer of a request, and moves the request to another replica if its own is lost before it answers."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass

from parallax_core.contracts.engine import Delta, Finish, Stream
from parallax_core.node.routing.replica import Replica, ReplicaUse

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RoutedStream:
    """A request on a replica."""

    replica: Replica
    stream: Stream
    claim: ReplicaUse

    def end(self) -> None:
        """Abort the request, unless it has ended, and release its share of the replica's load."""
        self.claim.release()
        self.stream.close()


class FailoverStream:
    """A stream that begins again on another replica when its own is lost before it has answered anything.

    Reading the deltas lowers the request's share of its replica's load. The caller reads the stream to its end or
    closes it.
    """

    def __init__(self, placement: RoutedStream, move: Callable[[Replica], Awaitable[RoutedStream | None]]) -> None:
        """Stream ``placement``; ``move`` places the request on another replica, or returns None."""
        self._move = move
        self._is_closed = False
        self._follow(placement)

    async def __aiter__(self) -> AsyncIterator[Delta]:
        """Yield the deltas up to and including the one with a finish; a stream that is closed ends at once."""
        has_answered = False
        try:
            while True:
                delta = await self._read()
                if delta.finish is not None and not has_answered and await self._begin_again(delta.finish):
                    continue
                if self._is_closed:
                    return
                has_answered = True
                yield delta
                if delta.finish is not None:
                    return
        finally:
            self.close()

    def close(self) -> None:
        """Abort the request, unless it has ended."""
        if not self._is_closed:
            self._is_closed = True
            self._placement.end()

    def _follow(self, placement: RoutedStream) -> None:
        self._placement = placement
        self._deltas = aiter(placement.stream)

    def _has_ended(self) -> bool:
        return self._is_closed

    async def _begin_again(self, finish: Finish) -> bool:
        if self._has_ended() or finish.reason not in {"error", "aborted"}:
            return False
        placement = await self._move(self._placement.replica)
        if placement is None:
            return False
        if self._has_ended():  # closed during the wait
            placement.end()
            return False
        self._placement.end()
        self._follow(placement)
        return True

    async def _read(self) -> Delta:
        try:
            delta = await anext(self._deltas)
            self._placement.claim.note(delta)
        except StopAsyncIteration:
            message = "the replica ended its answer without a finish"
        except Exception as error:
            logger.exception("replica failed to answer rank=%d", self._placement.replica.rank)
            message = f"{type(error).__name__}: {error}"
        else:
            return delta
        return Delta(finish=Finish(reason="error", prompt_tokens=0, output_tokens=0, message=message))

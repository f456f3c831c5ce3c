"""Streams the answer of a request, and moves the request to another replica if its own is lost before it answers."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, replace

from parallax_core.contracts.engine import Delta, Finish, Request, Stream
from parallax_core.engine.timing import Timeline, Timer
from parallax_core.node.routing.replica import Replica, ReplicaUse

GONE = "the client went away"

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


@dataclass(slots=True)
class RequestProgress:
    """The tokens and times of a request, as its router sees them."""

    request: Request
    timeline: Timeline
    num_tokens: int = 0
    """Of all answers together."""
    moved_s: float = 0.0
    """Seconds from its arrival until it was moved to its last replica; 0: it was not moved."""

    def complete(self, finish: Finish) -> Finish:
        """Return ``finish`` with a timing, which includes the time on lost replicas."""
        timing = finish.timing or self.timeline.read()
        if self.moved_s and finish.timing is not None:
            pauses = tuple(replace(pause, start_s=pause.start_s + self.moved_s) for pause in timing.pauses)
            timing = replace(timing, queued_s=timing.queued_s + self.moved_s, pauses=pauses)
        return replace(finish, timing=timing)

    def abandon(self) -> Finish:
        """Return the finish of a request whose client went away."""
        num_prompt = len(self.request.prompt)
        finish = Finish(reason="aborted", prompt_tokens=num_prompt, output_tokens=self.num_tokens, message=GONE)
        return self.complete(finish)


class FailoverStream:
    """A stream that begins again on another replica when its own is lost before it has answered anything.

    Reading the deltas lowers the request's share of its replica's load. The caller reads the stream to its end or
    closes it.
    """

    def __init__(
        self,
        placement: RoutedStream,
        progress: RequestProgress,
        move: Callable[[Replica], Awaitable[RoutedStream | None]],
        end: Callable[[Finish], None],
        clock: Timer,
    ) -> None:
        """Stream ``placement``, and keep ``progress``.

        Args:
            placement: the first replica's stream.
            progress: of the request.
            move: places the request on another replica, or returns None.
            end: called once with the finish, also if the client goes away.
            clock: in seconds.
        """
        self._progress = progress
        self._move = move
        self._end = end
        self._clock = clock
        self._is_closed = False
        self._is_over = False
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
                if delta.finish is not None:
                    yield self._finish(delta, delta.finish)
                    return
                yield delta
        finally:
            self.close()

    def close(self) -> None:
        """Abort the request, unless it has ended."""
        if not self._is_closed:
            self._is_closed = True
            self._placement.end()
            if not self._is_over:
                self._progress.timeline.latest = self._clock()
                self._end(self._progress.abandon())

    def _finish(self, delta: Delta, finish: Finish) -> Delta:
        """Record the end; return the terminal delta with the whole timing."""
        self._is_over = True
        self._progress.timeline.latest = self._clock()
        finish = self._progress.complete(finish)
        self._end(finish)
        return replace(delta, finish=finish)

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
            if delta.tokens:
                self._progress.num_tokens += len(delta.tokens)
                if self._progress.timeline.first is None:
                    self._progress.timeline.advance(self._clock())
        except StopAsyncIteration:
            message = "the replica ended its answer without a finish"
        except Exception as error:
            logger.exception("replica failed to answer rank=%d", self._placement.replica.rank)
            message = f"{type(error).__name__}: {error}"
        else:
            return delta
        return Delta(finish=Finish(reason="error", prompt_tokens=0, output_tokens=0, message=message))

"""Streams the answer of a request, and moves the request to another replica if its own is lost."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field, replace

from parallax_core.base.faults import describe_error
from parallax_core.base.tasks import TASK_ENDINGS
from parallax_core.cluster.routing.load import RequestLoad
from parallax_core.contracts.engine import Delta, Finish, Request, Stream
from parallax_core.engine.timing import Timeline, Timer
from parallax_core.node.routing.replica import Replica

GONE = "the client went away"

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RoutedStream:
    """A request on a replica."""

    replica: Replica
    stream: Stream
    claim: RequestLoad

    def note(self, delta: Delta, now: float) -> None:
        """Subtract the tokens that a delta shows to be done; the delta with the finish releases the rest."""
        if delta.finish is not None:
            self.claim.release()
        else:
            self.claim.note(delta.index, len(delta.tokens), now, has_ended=delta.ended is not None)

    def end(self) -> None:
        """Abort the request, unless it has ended, and release its share of the replica's load."""
        self.claim.release()
        self.stream.close()


@dataclass(slots=True)
class RequestProgress:
    """The tokens and times of a request, as its router sees them."""

    request: Request
    timeline: Timeline
    delivered: list[list[int]] = field(init=False)
    """The tokens of each answer that were read."""
    ended: set[int] = field(init=False)
    """The answers that have ended, by index."""
    moved_s: float = 0.0
    """Seconds from its arrival until it was moved to its last replica; 0: it was not moved."""

    def __post_init__(self) -> None:
        self.ended = set(self.request.ended)
        self.delivered = [list(tokens) for tokens in self.request.delivered] or [[] for _ in range(self.request.n)]

    @property
    def num_tokens(self) -> int:
        """The tokens of all answers together."""
        return sum(map(len, self.delivered))

    def note(self, delta: Delta, clock: Timer) -> None:
        """Note a delta that was read; only the first token, and the first after a move, are timed."""
        if delta.ended is not None:
            self.ended.add(delta.index)
        if delta.tokens:
            self.delivered[delta.index] += delta.tokens
            if self.timeline.first is None or self.timeline.paused is not None:
                now = clock()
                self.timeline.resume(now)
                self.timeline.advance(now)

    def complete(self, finish: Finish) -> Finish:
        """Return ``finish`` with a timing, which includes the time on lost replicas."""
        own, timing = self.timeline.read(), finish.timing
        if timing is None or not self.moved_s:
            return replace(finish, timing=timing or own)
        pauses = tuple(replace(pause, start_s=pause.start_s + self.moved_s) for pause in timing.pauses)
        if not own.pauses:
            timing = replace(timing, queued_s=timing.queued_s + self.moved_s, pauses=pauses)
        else:  # the last replica has not seen its beginning
            timing = replace(
                timing,
                queued_s=own.queued_s,
                prefill_s=own.prefill_s,
                decode_s=own.decode_s,
                recovery_s=own.recovery_s + timing.recovery_s,
                pauses=own.pauses + pauses,
            )
        return replace(finish, timing=timing)

    def abandon(self) -> Finish:
        """Return the finish of a request whose client went away."""
        num_prompt = len(self.request.prompt)
        finish = Finish(reason="aborted", prompt_tokens=num_prompt, output_tokens=self.num_tokens, message=GONE)
        return self.complete(finish)


class FailoverStream:
    """A stream that goes on on another replica when its own is lost, after the tokens that were read.

    Reading the deltas lowers the request's share of its replica's load. The caller reads the stream to its end or
    closes it.
    """

    def __init__(
        self,
        placement: RoutedStream,
        progress: RequestProgress,
        move: Callable[[Replica], Awaitable[RoutedStream | Finish | None]],
        end: Callable[[Finish], None],
        clock: Timer,
    ) -> None:
        """Stream ``placement``, and keep ``progress``.

        Args:
            placement: the first replica's stream.
            progress: of the request.
            move: places the request on another replica, or returns how it ends; None: as its replica ended it.
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
        try:
            while True:
                delta = await self._read()
                if delta.finish is None:
                    yield delta
                    continue
                finish = await self._go_on(delta, delta.finish)
                if self._is_closed:
                    return
                if finish is not None:
                    yield self._finish(delta, finish)
                    return
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
        self._is_over, now = True, self._clock()
        self._progress.timeline.resume(now)
        self._progress.timeline.latest = now
        finish = self._progress.complete(finish)
        self._end(finish)
        return replace(delta, finish=finish)

    def _follow(self, placement: RoutedStream) -> None:
        self._placement = placement
        self._deltas = aiter(placement.stream)

    async def _go_on(self, delta: Delta, finish: Finish) -> Finish | None:
        """Follow the request to another replica if its own was lost; return how it ends if it does not go on."""
        if self._is_closed or delta.tokens or finish.reason not in {"error", "aborted"}:
            return finish
        progress = self._progress
        if progress.num_tokens:
            progress.timeline.pause(self._clock())
        moved = await self._move(self._placement.replica)
        if not isinstance(moved, RoutedStream):
            return moved or finish
        self._placement.end()
        self._follow(moved)
        if self._has_ended():  # closed during the wait
            moved.end()
        return None

    def _has_ended(self) -> bool:
        return self._is_closed

    async def _read(self) -> Delta:
        try:
            delta = await anext(self._deltas)
            self._placement.note(delta, self._clock())
            self._progress.note(delta, self._clock)
        except StopAsyncIteration:
            message = "the replica ended its answer without a finish"
        except TASK_ENDINGS:
            raise
        except BaseException as error:
            logger.exception("replica failed to answer rank=%d", self._placement.replica.rank)
            message = describe_error(error)
        else:
            return delta
        return Delta(finish=Finish(reason="error", prompt_tokens=0, output_tokens=0, message=message))

"""Makes the masks of answers under grammars on two threads: one for quick masks, one for others."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from functools import partial
from time import perf_counter, thread_time
from typing import NamedTuple

from parallax_core.base.errors import ParallaxError
from parallax_core.base.faults import describe_error
from parallax_core.engine.client_turns import ClientTurns
from parallax_core.engine.head import Head
from parallax_core.engine.pending_mask import PendingMask
from parallax_core.node.pipeline.bounded_thread import BoundedThread

logger = logging.getLogger(__name__)

LIMIT_S = 10.0
"""Seconds that a mask may take, of a processor if it may be slow. Libraries limit themselves to a fraction of that, so
it hangs."""
WORK = "following the grammar"
"""What masks are made for, as errors name it."""
SLICE_S = 0.002
"""Seconds of making quick masks before the finished ones are handed over."""
MOST_AT_ONCE = 64
"""The most quick masks of one call."""


class MadeMask(NamedTuple):
    """A mask that was made, or why not."""

    pending: PendingMask
    bits: bytes
    error: BaseException | None
    seconds: float
    """Of a processor."""


class FinishedMask(NamedTuple):
    """A mask whose time was counted."""

    pending: PendingMask
    bits: bytes
    obstacle: str
    """Why its request cannot go on; empty: it can."""


class MaskLane:
    """Makes masks on one thread, in turns of the clients."""

    def __init__(
        self, thread: BoundedThread, most: int, deliver: Callable[[MadeMask], None], slower: MaskLane | None = None
    ) -> None:
        """Make up to ``most`` masks in a call, and give each to ``deliver``, on the event loop.

        Masks that turn out to be slow while they wait go to ``slower``.
        """
        self._thread = thread
        self._most = most
        self._deliver = deliver
        self._slower = slower
        self._turns: ClientTurns[PendingMask] = ClientTurns()
        self._running: asyncio.Future[None] | None = None

    def make(self, wanted: Iterable[PendingMask]) -> None:
        """Begin to make masks, after those that wait already."""
        for pending in wanted:
            self._turns.add(pending.client, pending)
        if self._running is None:
            self._begin()

    def close(self) -> None:
        """Make no more masks."""
        self._turns = ClientTurns()
        self._thread.close()

    def _begin(self) -> None:
        batch: list[PendingMask] = []
        slow: list[PendingMask] = []
        while self._turns and len(batch) < self._most:
            if (pending := self._turns.take()).is_wanted:
                (slow if self._slower is not None and pending.may_be_slow else batch).append(pending)
        if self._slower is not None:
            self._slower.make(slow)
        if batch:
            made: list[MadeMask] = []
            self._running = self._thread.call(partial(make_masks, batch, made))
            self._running.add_done_callback(partial(self._end, batch, made))

    def _end(self, batch: list[PendingMask], made: list[MadeMask], running: asyncio.Future[None]) -> None:
        """Hand over the masks that are made; what is left of the batch is next, but the one that hangs."""
        self._running = None
        if running.cancelled():
            return
        done = made[: len(batch)]  # a thread that was given up may go on
        left = batch[len(done) :]
        if (error := running.exception()) is not None and left:
            done = [*done, MadeMask(left.pop(0), b"", error, 0.0)]
        for pending in reversed(left):
            self._turns.put_back(pending.client, pending)
        for each in done:
            self._deliver(each)
        self._begin()


class MaskMaker:
    """Makes the masks of one engine. Belongs to one event loop.

    Masks that have been quick so far are not held up by those that may be slow, by whose client they are.
    """

    def __init__(self, head: Head, vocab_size: int, wake: Callable[[], None]) -> None:
        """Make masks for ``head``; call ``wake`` when there are some to be handed over."""
        self._head = head
        self._num_bytes = (vocab_size + 7) // 8
        self._wake = wake
        self._finished: list[FinishedMask] = []
        slow = BoundedThread("parallax-slow-masks", WORK, LIMIT_S, is_background=True)
        self._slow = MaskLane(slow, 1, self._finish)
        self._quick = MaskLane(BoundedThread("parallax-masks", WORK, LIMIT_S), MOST_AT_ONCE, self._finish, self._slow)

    def make(self) -> None:
        """Begin to make the masks that the head needs."""
        self._quick.make(self._head.take_masks())

    def hand_over(self, now: float) -> None:
        """Give the head the masks that are made, and end the requests whose masks could not be, or took too long."""
        finished, self._finished = self._finished, []
        for pending, bits, obstacle in finished:
            if obstacle:
                self._head.refuse(pending.request_id, obstacle)
            else:
                self._head.give_mask(pending, bits, now)

    def close(self) -> None:
        """Make no more masks."""
        self._quick.close()
        self._slow.close()

    def _finish(self, made: MadeMask) -> None:
        obstacle = made.pending.note(made.seconds) if made.error is None else _explain(made.error)
        bits = made.bits[: self._num_bytes].ljust(self._num_bytes, b"\0")
        self._finished.append(FinishedMask(made.pending, bits, obstacle))
        self._wake()


def _explain(error: BaseException) -> str:
    """Return why a request with a grammar cannot go on, for its client; log an error that is a bug, or a panic."""
    if isinstance(error, ParallaxError):
        return error.message
    logger.error("grammar fails", exc_info=error)
    return f"its grammar cannot be followed: {describe_error(error)}"


def make_masks(batch: Iterable[PendingMask], made: list[MadeMask]) -> None:
    """Make masks, and add them to ``made``, until `SLICE_S` have passed; raises nothing.

    A thread that waits for a processor may come to answers that are over meanwhile.
    """
    until = perf_counter() + SLICE_S
    for pending in batch:
        bits, error, begun = b"", None, thread_time()
        try:
            bits = pending.make() if pending.is_wanted else b""
        except BaseException as fault:  # noqa: BLE001 -- the request ends, whatever the error is
            error = fault
        made.append(MadeMask(pending, bits, error, thread_time() - begun))
        if perf_counter() > until:
            return

"""Tracks the answers that can have a row in the next step, and those that wait for a mask."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterable
from operator import attrgetter

from parallax_core.base.ids import SeqId
from parallax_core.contracts.policy import QueueView
from parallax_core.engine.pending_mask import PendingMask
from parallax_core.engine.sequence import Sequence
from parallax_core.engine.waiting import WaitingQueue

HOLD_SHARE = 0.2
"""The part of its own time for which a step waits for masks that are quick as a rule, so that answers under grammars
stay together in one step. No step waits for a mask that may be slow."""
LEAST_HOLD_S, MOST_HOLD_S = 0.001, 0.02
"""The bounds of that time in seconds: a thread has to wake up, and be given a processor."""


class Readiness:
    """The answers of a head that are neither over nor being drawn: ready for a row, or in need of a mask.

    An answer under a grammar is ready once the mask for its next token is in hand. Its mask depends on its tokens only,
    and stays when it leaves the stages.
    """

    def __init__(self) -> None:
        self._ready: OrderedDict[Sequence, None] = OrderedDict()
        """Those that could have a row in the next step, on the stages or not, the longest ready first."""
        self._waiting = WaitingQueue()
        self._new: list[PendingMask] = []
        self._pending: dict[Sequence, PendingMask] = {}
        self._quick: set[Sequence] = set()
        """Those whose masks are quick as a rule."""
        self._held_since: float | None = None
        """When the first of them began to wait, since the last step with rows."""
        self._hold_s = LEAST_HOLD_S

    @property
    def is_masking(self) -> bool:
        """Whether an answer waits for a mask."""
        return bool(self._pending)

    def begin_epoch(self, waiting: WaitingQueue, live: Iterable[Sequence]) -> None:
        """Queue all of ``live`` in ``waiting`` from now on; none is on the stages or being drawn."""
        self._waiting = waiting
        self.replace(able := [sequence for sequence in live if sequence.can_draw])
        for sequence in able:
            waiting.add(sequence)

    def replace(self, live: Iterable[Sequence]) -> None:
        """Mark exactly those of ``live`` as ready that are not being drawn and need no mask."""
        ready = [each for each in live if each.can_draw and not each.is_drawing]
        self._ready = OrderedDict.fromkeys(sorted(ready, key=attrgetter("ready_since")))

    def settle(self, sequences: Iterable[Sequence], now: float | None = None) -> None:
        """Mark sequences as ready, and as waiting if they are not on the stages, or ask for their masks.

        Those that are over or being drawn, and those of a request that waits for its grammar, are left alone. ``now``:
        the time at which they got a token; None: they did not.
        """
        for sequence in sequences:
            if sequence.is_over or sequence.is_drawing or sequence.context.is_held:
                continue
            if not sequence.can_draw:
                self._ask(sequence, now)
                continue
            self._ready.setdefault(sequence)
            if sequence.seq is None:
                self._waiting.add(sequence)

    def take_masks(self) -> list[PendingMask]:
        """Return the masks to be made that were not returned before."""
        new, self._new = self._new, []
        return [pending for pending in new if pending.is_wanted]

    def give_mask(self, pending: PendingMask, bits: bytes, now: float) -> None:
        """Mark an answer as ready, whose mask was made. Does nothing if it is over."""
        sequence = pending.sequence
        if self._pending.pop(sequence, None) is not None:
            self._quick.discard(sequence)
            sequence.mask, sequence.ready_since = bits, now
            self.settle((sequence,))

    def note_row(self, sequence: Sequence) -> None:
        """Note that a sequence has a row in a step that departs."""
        self._held_since = None
        if sequence.is_drawing:
            self._ready.pop(sequence, None)

    def note_step(self, seconds: float) -> None:
        """Note how long the latest step took, from its departure to its result."""
        self._hold_s = min(max(HOLD_SHARE * seconds, LEAST_HOLD_S), MOST_HOLD_S)

    def drop(self, sequence: Sequence) -> None:
        """Forget a sequence that is over."""
        sequence.is_over = True
        self._ready.pop(sequence, None)
        self._waiting.discard(sequence)
        self._pending.pop(sequence, None)
        self._quick.discard(sequence)

    def view(self, now: float, num_in_flight: int) -> QueueView | None:
        """Return a batching policy's view of the ready sequences, or None without any."""
        if (first := next(iter(self._ready), None)) is None:
            return None
        oldest = now - first.ready_since
        return QueueView(num_ready=len(self._ready), oldest_wait_s=oldest, num_in_flight=num_in_flight)

    def hold_s(self, now: float) -> float:
        """Return the seconds for which a step waits for masks that are about to be made; 0: it does not."""
        if not self._quick or self._held_since is None:
            return 0.0
        return max(0.0, self._held_since + self._hold_s - now)

    def check(self, live: Iterable[Sequence], running: Collection[SeqId]) -> None:
        """Check that each of ``live``, and nothing else, is ready, being drawn or in need of a mask; for tests."""
        live = list(live)
        able = [each for each in live if each.can_draw]
        assert set(self._ready) == {each for each in able if not each.is_drawing}
        assert set(self._pending) == {each for each in live if not (each.is_drawing or each.can_draw)}
        since = [each.ready_since for each in self._ready]
        assert since == sorted(since), "who has been ready longest is not first"
        self._waiting.check([each for each in able if each.is_waiting], running)

    def _ask(self, sequence: Sequence, now: float | None) -> None:
        if sequence in self._pending:
            return
        grammar, is_quick = sequence.find_grammar(), sequence.context.masks.is_quick and now is not None
        pending = PendingMask(sequence, grammar, sequence.num_output - grammar.num_taken, is_quick)
        self._pending[sequence] = pending
        self._new.append(pending)
        if is_quick:
            self._quick.add(sequence)
            self._held_since = now if self._held_since is None else self._held_since

"""Who waits to begin on the stages, and who could have a row: at a cost per step that does not grow with them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

from parallax_core.base.ids import SeqId
from parallax_core.engine.priority import PriorityQueue
from parallax_core.engine.sequence import Sequence

MIN_SHARED = 32
"""Computing fewer tokens takes no longer than waiting for a step."""


class WaitingQueue:
    """Sequences that could begin on the stages, by rank; some wait for another one to compute what they share."""

    def __init__(self, min_shared: int = MIN_SHARED) -> None:
        self.min_shared = min_shared
        """One waits for another that is computing the same beginning if that saves it at least so many tokens."""
        self._queue: PriorityQueue[Sequence] = PriorityQueue()
        self._sources: dict[Sequence, SeqId] = {}
        """The running sequence that one waits for."""
        self._followers: dict[SeqId, PriorityQueue[Sequence]] = {}
        """Those that wait for a running sequence, by the number of tokens it has to have."""

    def __len__(self) -> int:
        return len(self._queue) + len(self._sources)

    def add(self, sequence: Sequence) -> None:
        """Have a sequence wait; one that does goes on waiting for what it waits for."""
        if sequence not in self._queue and sequence not in self._sources:
            self._queue.add(sequence.rank, sequence)

    def discard(self, sequence: Sequence) -> None:
        """Forget a sequence that waits no longer; harmless if it does not wait."""
        self._queue.discard(sequence)
        if (source := self._sources.pop(sequence, None)) is not None:
            self._followers[source].discard(sequence)

    def first(self) -> Sequence | None:
        """Return the one of the highest rank among those that wait for nobody."""
        found = self._queue.first()
        return None if found is None else found[1]

    def follow(self, sequence: Sequence, source: SeqId, length: int) -> None:
        """Have a sequence wait until a running one has ``length`` tokens, or leaves the stages."""
        self._queue.discard(sequence)
        self._sources[sequence] = source
        self._followers.setdefault(source, PriorityQueue()).add(length, sequence)

    def note_length(self, source: SeqId, length: int) -> None:
        """A running sequence has so many tokens: whoever waited for no more can begin."""
        followers = self._followers.get(source)
        while followers and (found := followers.first()) and found[0] <= length:
            self._free(found[1], followers)
        if followers is not None and not followers:
            del self._followers[source]

    def note_end(self, source: SeqId) -> None:
        """A running sequence leaves the stages: whoever waited for it can begin."""
        followers = self._followers.pop(source, None)
        while followers and (found := followers.first()):
            self._free(found[1], followers)

    def _free(self, sequence: Sequence, followers: PriorityQueue[Sequence]) -> None:
        followers.discard(sequence)
        del self._sources[sequence]
        self.add(sequence)


class ReadyList:
    """Sequences that could have a row in the next step, on the stages or not, and since when the first of them could.

    They are added in the order of `Sequence.ready_since`.
    """

    def __init__(self) -> None:
        self._ready: OrderedDict[Sequence, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._ready)

    @property
    def oldest(self) -> Sequence | None:
        """The one that has been ready for the longest time."""
        return next(iter(self._ready), None)

    def add(self, sequence: Sequence) -> None:
        """Count a sequence as ready; one that is keeps its place."""
        self._ready.setdefault(sequence)

    def discard(self, sequence: Sequence) -> None:
        """Count a sequence as not ready."""
        self._ready.pop(sequence, None)

    def replace(self, sequences: Iterable[Sequence]) -> None:
        """Count just these as ready."""
        self._ready = OrderedDict.fromkeys(sorted(sequences, key=lambda sequence: sequence.ready_since))

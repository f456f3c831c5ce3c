"""The sequences waiting for admission, at a constant cost per step."""

from __future__ import annotations

from collections.abc import Collection

from parallax_core.base.ids import SeqId
from parallax_core.engine.priority import PriorityQueue
from parallax_core.engine.sequence import Sequence

MIN_SHARED = 32
"""Shared tokens that make waiting for another sequence worthwhile: computing fewer is as fast as waiting a step."""


class WaitingQueue:
    """Sequences to admit to the stages, by rank; some wait for a running one that computes their shared prefix."""

    def __init__(self, min_shared: int = MIN_SHARED) -> None:
        self.min_shared = min_shared
        """The least number of tokens a sequence must save to wait for another that computes the same prefix."""
        self._queue: PriorityQueue[Sequence] = PriorityQueue()
        self._sources: dict[Sequence, SeqId] = {}
        """The running sequence that each follower waits for."""
        self._followers: dict[SeqId, PriorityQueue[Sequence]] = {}
        """The followers of each running sequence, by the length they wait for."""

    def __len__(self) -> int:
        return len(self._queue) + len(self._sources)

    def add(self, sequence: Sequence) -> None:
        """Add a sequence; one that already waits is left as it is."""
        if sequence not in self._queue and sequence not in self._sources:
            sequence.num_found = None
            self._queue.add(sequence.rank, sequence)

    def discard(self, sequence: Sequence) -> None:
        """Remove a sequence, if it waits."""
        self._queue.discard(sequence)
        if (source := self._sources.pop(sequence, None)) is not None:
            self._followers[source].discard(sequence)

    def first(self) -> Sequence | None:
        """Return the sequence of the highest rank that follows no other, or None."""
        found = self._queue.first()
        return None if found is None else found[1]

    def list_first(self, count: int) -> list[Sequence]:
        """Return the ``count`` sequences of the highest ranks that follow no other, by rank."""
        return self._queue.list_first(count)

    def follow(self, sequence: Sequence, source: SeqId, length: int) -> None:
        """Hold a sequence until ``source`` has ``length`` tokens or leaves the stages."""
        self._queue.discard(sequence)
        self._sources[sequence] = source
        self._followers.setdefault(source, PriorityQueue()).add(length, sequence)

    def note_length(self, source: SeqId, length: int) -> None:
        """Release the followers of ``source`` that wait for at most ``length`` tokens."""
        followers = self._followers.get(source)
        while followers and (found := followers.first()) and found[0] <= length:
            self._free(found[1], followers)
        if followers is not None and not followers:
            del self._followers[source]

    def note_end(self, source: SeqId) -> None:
        """Release all followers of ``source``, which leaves the stages."""
        followers = self._followers.pop(source, None)
        while followers and (found := followers.first()):
            self._free(found[1], followers)

    def check(self, waiting: Collection[Sequence], running: Collection[SeqId]) -> None:
        """Check that exactly ``waiting`` are here, and that those they follow are ``running``; for tests."""
        assert len(self) == len(waiting)
        assert all(each in self._queue or each in self._sources for each in waiting)
        assert all(source in running for source in self._sources.values())

    def _free(self, sequence: Sequence, followers: PriorityQueue[Sequence]) -> None:
        followers.discard(sequence)
        del self._sources[sequence]
        self.add(sequence)

"""Who gets how many tokens in the next step."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain
from operator import attrgetter

from parallax_core.contracts.policy import Holder, PreemptionPolicy
from parallax_core.engine.ledger import Claim, Ledger
from parallax_core.engine.sequence import Sequence
from parallax_core.engine.store import Store


@dataclass(frozen=True, kw_only=True, slots=True)
class Room:
    """How much a step may hold."""

    max_tokens: int
    max_decodes: int
    max_running: int
    """Sequences on the stages at once."""


class Scheduler:
    """Plans one step: claims pages for it, makes room, and admits who waits.

    Everybody is ranked by urgency, then by arrival. Nobody takes a page from a sequence of higher rank.
    """

    def __init__(self, ledger: Ledger, store: Store, preemption: PreemptionPolicy, now: float) -> None:
        self._ledger = ledger
        self._store = store
        self._preemption = preemption
        self._now = now
        self.num_preempted = 0
        self._chosen: dict[Sequence, int] = {}

    def choose(self, live: Iterable[Sequence], room: Room) -> dict[Sequence, int]:
        """Return the sequences of the step with their numbers of tokens; decodes first, so that no stream stalls."""
        ranked = sorted(live, key=attrgetter("rank"))
        claim, budget = self._ledger.claim(room.max_tokens), room.max_tokens
        if not self._ledger.is_rewindable:
            self._branch(ranked, claim, room)
        running = [one for one in ranked if one.is_ready]
        decodes = [one for one in running if one.num_missing == 1]
        for sequence in chain(decodes, [one for one in running if one.num_missing != 1]):
            is_over = sequence.num_missing == 1 and len(self._chosen) >= room.max_decodes
            if budget and sequence.is_ready and not is_over:
                budget -= self._take(sequence, claim, budget, ranked)
        self._admit(ranked, claim, budget, room)
        return self._chosen

    def _branch(self, ranked: list[Sequence], claim: Claim, room: Room) -> None:
        """Begin answers as their request's first one, whose next row takes it beyond the prompt for good."""
        num_running = _count_running(ranked)
        for sequence in ranked:
            source = sequence.siblings[0]
            if not (sequence.is_waiting and source.is_ready and source.planned == source.num_prompt):
                continue
            if num_running < room.max_running and self._store.branch(sequence, source, claim):
                num_running += 1
            else:
                self._store.keep(source, claim)

    def _admit(self, ranked: list[Sequence], claim: Claim, budget: int, room: Room) -> None:
        """Begin those who wait, until one of them finds no room."""
        num_running = _count_running(ranked)
        for sequence in ranked:
            if not sequence.is_waiting or (self._ledger.is_rewindable and sequence.is_foreseen):
                continue
            if not budget or num_running >= room.max_running or not self._store.admit(sequence, claim):
                break
            num_running += 1
            budget -= self._take(sequence, claim, budget, ranked)

    def _take(self, sequence: Sequence, claim: Claim, budget: int, ranked: list[Sequence]) -> int:
        wanted = min(sequence.num_missing, budget)
        if self._store.interval:
            self._store.keep_due(sequence, claim)
            wanted = self._store.limit_row(sequence, wanted)
        count = self._fit(sequence, claim, wanted, ranked)
        if count:
            self._chosen[sequence] = count
        return count

    def _fit(self, sequence: Sequence, claim: Claim, count: int, ranked: list[Sequence]) -> int:
        """Claim pages for as many tokens of ``sequence`` as there can be, after making room for at least one."""
        assert sequence.seq is not None
        while not claim.take(sequence.seq, count):
            if self._store.evict(None):
                continue
            if count > 1:
                count //= 2
            elif not self._preempt(sequence, ranked):
                return 0
        return count

    def _preempt(self, sequence: Sequence, ranked: list[Sequence]) -> bool:
        """Take a sequence of lower rank off the stages; return whether there was one.

        A policy chooses among requests; of one with several answers the last gives way.
        """
        lower = {
            one.request.id: one
            for one in ranked[ranked.index(sequence) + 1 :]
            if one.seq is not None and one not in self._chosen
        }
        victim = self._preemption.choose([self._describe(one) for one in lower.values()])
        if victim is None:
            return False
        self.num_preempted += 1
        self._store.discard(lower[victim])
        return True

    def _describe(self, sequence: Sequence) -> Holder:
        return Holder(
            id=sequence.request.id,
            priority=sequence.urgency(self._now),
            arrived=sequence.arrived,
            num_tokens=len(sequence.tokens),
        )


def _count_running(sequences: Iterable[Sequence]) -> int:
    return sum(one.seq is not None for one in sequences)

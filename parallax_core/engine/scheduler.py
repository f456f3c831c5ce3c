"""Who gets how many tokens in the next step."""

from __future__ import annotations

from collections.abc import Iterable

from parallax_core.base.ids import RequestId
from parallax_core.contracts.policy import Holder, PreemptionPolicy
from parallax_core.engine.ledger import Claim, Ledger
from parallax_core.engine.sequence import Sequence
from parallax_core.engine.store import Store


class Scheduler:
    """Plans one step: claims pages for it, makes room, and admits who waits.

    Everybody is ranked by urgency, then by arrival. Nobody takes a page from a request of higher rank.
    """

    def __init__(self, ledger: Ledger, store: Store, preemption: PreemptionPolicy, now: float) -> None:
        self._ledger = ledger
        self._store = store
        self._preemption = preemption
        self._now = now
        self._chosen: dict[RequestId, tuple[Sequence, int]] = {}

    def choose(
        self, live: Iterable[Sequence], max_tokens: int, max_decodes: int, max_running: int
    ) -> list[tuple[Sequence, int]]:
        """Return the sequences of the step with their numbers of tokens; decodes first, so that no stream stalls."""
        ranked = sorted(live, key=self._rank)
        claim, budget = self._ledger.claim(max_tokens), max_tokens
        running = sorted((one for one in ranked if one.is_ready), key=lambda one: one.num_missing > 1)
        for sequence in running:
            is_over = sequence.num_missing == 1 and len(self._chosen) >= max_decodes
            if budget and sequence.is_ready and not is_over:
                budget -= self._take(sequence, claim, budget, ranked)
        num_running = sum(one.seq is not None for one in ranked)
        for sequence in ranked:
            if sequence.seq is not None or sequence.is_drawing:
                continue
            if not budget or num_running >= max_running:
                break
            if not self._store.admit(sequence, claim):
                break
            num_running += 1
            budget -= self._take(sequence, claim, budget, ranked)
        return list(self._chosen.values())

    def _rank(self, sequence: Sequence) -> tuple[float, float]:
        return sequence.urgency(self._now), sequence.arrived

    def _take(self, sequence: Sequence, claim: Claim, budget: int, ranked: list[Sequence]) -> int:
        count = self._fit(sequence, claim, min(sequence.num_missing, budget), ranked)
        if count:
            self._chosen[sequence.request.id] = (sequence, count)
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
        """Take a sequence of lower rank off the stages; return whether there was one."""
        lower = {
            one.request.id: one
            for one in ranked[ranked.index(sequence) + 1 :]
            if one.seq is not None and one.request.id not in self._chosen
        }
        victim = self._preemption.choose([self._describe(one) for one in lower.values()])
        if victim is None:
            return False
        self._store.discard(lower[victim])
        return True

    def _describe(self, sequence: Sequence) -> Holder:
        return Holder(
            id=sequence.request.id,
            priority=sequence.urgency(self._now),
            arrived=sequence.arrived,
            num_tokens=len(sequence.tokens),
        )

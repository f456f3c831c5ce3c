"""Who gets how many tokens in the next step."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from operator import attrgetter

from parallax_core.contracts.policy import PreemptionPolicy
from parallax_core.engine.cache import SequenceCache
from parallax_core.engine.ledger import PageClaim
from parallax_core.engine.sequence import Sequence
from parallax_core.engine.victims import Victims

RANK = attrgetter("rank")
MOST_LOOKED_UP = 2**18
"""Tokens of those who wait that are looked up for one step, so that no plan holds up the process."""
LOOK_UP = 512
"""As many tokens a look-up counts for itself."""
MOST_BEGUN = 512
"""Answers that may begin with one step, of requests that want several each: more would hold up the process."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StepBudget:
    """How much a step may hold."""

    max_tokens: int
    max_decodes: int
    max_running: int
    """Sequences on the stages at once."""


class Scheduler:
    """Plans one step: claims pages for it, makes room, and admits who waits.

    Everybody is ranked by urgency, then by arrival. Nobody takes a page from a sequence of higher rank.
    """

    def __init__(self, cache: SequenceCache, preemption: PreemptionPolicy, now: float) -> None:
        self._cache = cache
        self._ledger = cache.ledger
        self._budget = cache.budget
        self._waiting = cache.waiting
        self._preemption = preemption
        self._now = now
        self._ranked: list[Sequence] = []
        """Those that run when the step begins, by rank."""
        self._victims: Victims | None = None
        self.num_preempted = 0
        self._chosen: dict[Sequence, int] = {}
        self._num_begun = 0
        """Answers that begin with the draws of the step."""

    def choose(self, room: StepBudget) -> dict[Sequence, int]:
        """Return the sequences of the step with their numbers of tokens; decodes first, so that no stream stalls."""
        claim, budget = self._ledger.claim(room.max_tokens), room.max_tokens
        if not self._ledger.is_rewindable:
            self._branch(claim, room)
        self._ranked = sorted(self._cache.running.values(), key=RANK)
        running = [one for one in self._ranked if one.is_ready]
        decodes = [one for one in running if one.num_missing == 1]
        for sequence in chain(decodes, [one for one in running if one.num_missing != 1]):
            is_over = sequence.num_missing == 1 and len(self._chosen) >= room.max_decodes
            if budget and sequence.is_ready and not is_over:
                budget -= self._take(sequence, claim, budget)
        self._admit(claim, budget, room)
        return self._chosen

    def _branch(self, claim: PageClaim, room: StepBudget) -> None:
        """Begin answers as their request's first one, whose next row takes it beyond the prompt for good."""
        for source in sorted(self._cache.running.values(), key=RANK):
            if source.choice or not source.is_ready or source.planned != source.num_prompt:
                continue
            for sequence in source.siblings[1:]:
                has_place = len(self._cache.running) < room.max_running
                if sequence.is_waiting and not (has_place and self._cache.branch(sequence, source, claim)):
                    self._cache.keep(source, claim)

    def _admit(self, claim: PageClaim, budget: int, room: StepBudget) -> None:
        """Begin those who wait, until one of them finds no room."""
        num_looked_up = 0
        while budget and len(self._cache.running) < room.max_running and num_looked_up < MOST_LOOKED_UP:
            sequence = self._waiting.first()
            if sequence is None:
                break
            num_looked_up += LOOK_UP + sequence.num_tokens
            found = self._cache.find(sequence)
            if found.coming is not None:
                self._waiting.follow(sequence, found.coming.seq, found.coming.length)
            elif self._cache.admit(sequence, found, claim):
                budget -= self._take(sequence, claim, budget)
            else:
                break

    def _take(self, sequence: Sequence, claim: PageClaim, budget: int) -> int:
        num_begun = sequence.num_begun
        has_to_wait = self._num_begun + num_begun > MOST_BEGUN
        wanted = min(sequence.num_missing - 1 if has_to_wait else sequence.num_missing, budget)
        if self._cache.interval:
            self._cache.keep_due(sequence, claim)
            wanted = self._cache.limit_row(sequence, wanted)
        cost, draw = sequence.context.cost, sequence.draw_bytes
        count = self._budget.limit_row(cost, draw, wanted) if wanted else 0
        if count and (count := self._fit(sequence, claim, count)):
            self._chosen[sequence] = count
            self._budget.take_row(cost, draw, count)
            self._num_begun += num_begun if count == sequence.num_missing else 0
        return count

    def _fit(self, sequence: Sequence, claim: PageClaim, count: int) -> int:
        """Claim pages for as many tokens of ``sequence`` as there can be, after making room for at least one."""
        assert sequence.seq is not None
        while not claim.take(sequence.seq, count):
            if self._cache.evict(None):
                continue
            if count > 1:
                count //= 2
            elif not self._preempt(sequence):
                return 0
        return count

    def _preempt(self, sequence: Sequence) -> bool:
        """Take a sequence of lower rank off the stages; return whether there was one.

        A policy is asked only so much for a step that has rows: who then finds no page has a row in a later one.
        """
        victims = self._victims
        if victims is None:
            victims = self._victims = Victims(self._preemption, self._ranked, self._now)
        if self._chosen and victims.is_spent:
            return False
        victim = victims.choose(sequence.rank, self._chosen)
        if victim is None:
            return False
        self.num_preempted += 1
        self._cache.discard(victim)
        return True

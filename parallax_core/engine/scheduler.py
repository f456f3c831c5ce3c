"""Makes the next step legal: pages, places and budgets for the sequences that policies put in order."""

from __future__ import annotations

from dataclasses import dataclass
from operator import attrgetter

from parallax_core.contracts.policy import PreemptionPolicy
from parallax_core.engine.cache import MOST_LOOKED_UP, SequenceCache, count_look_up
from parallax_core.engine.ledger import PageClaim
from parallax_core.engine.pacing import Pacer, PromptBudget, StreamLoad
from parallax_core.engine.prompt_order import PromptOrder, StepPrompts
from parallax_core.engine.sequence import Sequence
from parallax_core.engine.step_cost import StepCosts, StepSize
from parallax_core.engine.victims import Victims

RANK = attrgetter("rank")
MOST_BEGUN = 512
"""The most additional answers (of requests with n > 1) begun by one step; more would block the process."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StepBudget:
    """The limits of a step."""

    max_tokens: int
    max_decodes: int
    max_running: int
    """The most sequences on the stages at the same time."""


class Scheduler:
    """Plans one step: claims pages, makes room, and admits waiting sequences.

    Sequences are ranked by urgency, then by arrival. No sequence takes a page from one of higher rank. Prompts are
    served in the order of a policy.
    """

    def __init__(
        self, cache: SequenceCache, order: PromptOrder, preemption: PreemptionPolicy, pacer: Pacer, now: float
    ) -> None:
        self._cache = cache
        self._order = order
        self._pacer = pacer
        self._ledger = cache.ledger
        self._budget = cache.budget
        self._waiting = cache.waiting
        self._preemption = preemption
        self._now = now
        self._ranked: list[Sequence] = []
        """The sequences running at the start of the step, by rank."""
        self._victims: Victims | None = None
        self.num_preempted = 0
        self._chosen: dict[Sequence, int] = {}
        self._num_begun = 0
        """The number of additional answers begun by the draws of the step."""
        self._prompts = PromptBudget(StepCosts())
        self._num_prompt = 0
        """The number of prompt tokens chosen."""
        self._is_lone = False
        """Whether no sequence is beside another one."""
        self._is_short = False
        """Whether a running sequence has prompt tokens that are not in the step."""
        self._is_ordered = False
        """Whether the policy was asked."""
        self._num_looked_up = 0
        self._is_full = False
        """Whether a waiting sequence has not fitted, so that no other is admitted."""

    def choose(self, room: StepBudget) -> dict[Sequence, int]:
        """Return the number of tokens of each sequence in the step; decodes first, so that no stream stalls."""
        claim, budget = self._ledger.claim(room.max_tokens), room.max_tokens
        if not self._ledger.is_rewindable:
            self._branch(claim, room)
        self._ranked = sorted(self._cache.running.values(), key=RANK)
        self._is_lone = len(self._ranked) + len(self._waiting) == 1
        running = [one for one in self._ranked if one.is_ready]
        decodes = [one for one in running if one.num_missing == 1]
        for sequence in decodes:
            if budget and sequence.is_ready and len(self._chosen) < room.max_decodes:
                budget -= self._take(sequence, claim, budget)
        prefills = [one for one in running if one.num_missing != 1 and one.is_ready]
        if prefills or self._waiting.first() is not None:
            self._prompts = self._pacer.make_budget(self._measure_decodes(), self._measure_load(room))
            self._serve(prefills, claim, budget, room)
        self._order.note(self._chosen, self._now)
        self._note_prompts(room)
        return self._chosen

    def _serve(self, prefills: list[Sequence], claim: PageClaim, budget: int, room: StepBudget) -> None:
        """Serve prompts in the order of the policy, then those on the stages, then waiting ones, each by rank."""
        budget -= self._serve_ordered(prefills, claim, budget, room)
        for sequence in prefills:
            if budget and sequence.is_ready and sequence not in self._chosen:
                budget -= self._take(sequence, claim, budget)
        if self._waiting.first() is not None:
            self._park_slow()
            if not self._is_ordered:
                budget -= self._serve_ordered([], claim, budget, room)
            self._admit(claim, budget, room)

    def _serve_ordered(self, prefills: list[Sequence], claim: PageClaim, budget: int, room: StepBudget) -> int:
        """Serve the prompts that the policy names; return their tokens."""
        num_places = max(0, room.max_running - len(self._cache.running))
        if not (budget and (prefills or num_places)) or not (most := self._prompts.limit(0, budget)):
            return 0
        self._is_ordered = True
        prompts, left = StepPrompts(most, num_places, prefills, self._ranked), budget
        for sequence, tokens in self._order.ask(prompts, self._cache, self._now):
            if not (count := min(tokens, left)) or sequence in self._chosen:
                continue
            if sequence.seq is not None:
                left -= self._take(sequence, claim, count)
            elif self._has_place(room):
                left -= self._begin(sequence, claim, count)
        return budget - left

    def _measure_decodes(self) -> StepSize:
        size = StepSize()
        for sequence, count in self._chosen.items():
            size = size.add(sequence.planned, count)
        return size

    def _measure_load(self, room: StepBudget) -> StreamLoad:
        begun = [sequence for sequence in self._ranked if sequence.output]
        num_present = min(len(self._ranked) + len(self._waiting), room.max_running)
        return StreamLoad(len(begun), any(sequence.is_drawing for sequence in begun), num_present)

    def _note_prompts(self, room: StepBudget) -> None:
        could_admit = self._waiting.first() is not None and len(self._cache.running) < room.max_running
        is_short = self._is_short or could_admit
        self._pacer.note(self._prompts, self._num_prompt, is_short=is_short, now=self._now)

    def _branch(self, claim: PageClaim, room: StepBudget) -> None:
        """Fork waiting answers from their request's first one while it is exactly at the end of the prompt."""
        for source in sorted(self._cache.running.values(), key=RANK):
            if source.choice or not source.is_ready or source.planned != source.num_prompt:
                continue
            for sequence in source.siblings[1:]:
                has_place = len(self._cache.running) < room.max_running
                if sequence.is_waiting and not (has_place and self._cache.branch(sequence, source, claim)):
                    self._cache.keep(source, claim)

    def _admit(self, claim: PageClaim, budget: int, room: StepBudget) -> None:
        """Admit waiting sequences by rank until one does not fit."""
        while budget and self._has_place(room) and (sequence := self._waiting.first()) is not None:
            budget -= self._begin(sequence, claim, budget)

    def _has_place(self, room: StepBudget) -> bool:
        """Return whether a waiting sequence may be admitted."""
        may_look_up = self._num_looked_up < MOST_LOOKED_UP and not self._is_full
        return may_look_up and len(self._cache.running) < room.max_running and not self._prompts.is_spent

    def _park_slow(self) -> None:
        """Let the running sequences that wait for slow masks make room for waiting ones."""
        for each in self._ranked:
            if each.seq is not None and each.awaits_slow_mask:
                self._cache.park(each)

    def _begin(self, sequence: Sequence, claim: PageClaim, most: int) -> int:
        """Admit a waiting sequence with up to ``most`` tokens, or let it follow another; return its tokens."""
        self._num_looked_up += count_look_up(sequence)
        found = self._cache.find(sequence)
        if found.coming is not None:
            self._waiting.follow(sequence, found.coming.seq, found.coming.length)
            return 0
        if not self._cache.admit(sequence, found, claim):
            self._is_full = True
            return 0
        return self._take(sequence, claim, most)

    def _take(self, sequence: Sequence, claim: PageClaim, budget: int) -> int:
        num_begun = sequence.num_begun
        has_to_wait = self._num_begun + num_begun > MOST_BEGUN
        wanted = min(sequence.num_missing - 1 if has_to_wait else sequence.num_missing, budget)
        is_prompt = sequence.num_missing != 1
        if is_prompt:
            wanted = self._prompts.limit(sequence.planned, wanted)
        if is_prompt and self._is_lone:
            uncached = sequence.num_tokens - (sequence.num_cached or 0)
            wanted = min(wanted, self._pacer.clock.cut_prompt(uncached, budget))
        if self._cache.interval:
            self._cache.keep_due(sequence, claim)
            wanted = self._cache.limit_row(sequence, wanted)
        cost, draw = sequence.context.cost, sequence.draw_bytes
        count = self._budget.limit_row(cost, draw, wanted) if wanted else 0
        count = self._fit(sequence, claim, count) if count else 0
        self._is_short |= is_prompt and count < sequence.num_missing
        if count:
            if is_prompt:
                self._prompts.take(sequence.planned, count)
                self._num_prompt += count
            self._chosen[sequence] = count
            self._budget.take_row(cost, draw, count)
            self._num_begun += num_begun if count == sequence.num_missing else 0
        return count

    def _fit(self, sequence: Sequence, claim: PageClaim, count: int) -> int:
        """Claim pages for up to ``count`` tokens of ``sequence``, preempting others for one token if necessary."""
        assert sequence.seq is not None
        while not claim.take(sequence.seq, count):
            if self._cache.evict(sequence.request.id) is not None:
                continue
            if count > 1:
                count //= 2
            elif not self._preempt(sequence):
                return 0
        return count

    def _preempt(self, sequence: Sequence) -> bool:
        """Preempt a sequence of lower rank; return whether there was one.

        If the step has rows, the policy is asked up to a limit; a sequence left without a page runs in a later step.
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

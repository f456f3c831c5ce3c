"""Asks the scheduling policy whose prompts come first, and sees that it starves none."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Listing
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, islice

from parallax_core.contracts.policy import PromptView, SchedulingPolicy, SchedulingView
from parallax_core.engine.cache import MOST_LOOKED_UP, SequenceCache, count_look_up
from parallax_core.engine.sequence import Sequence

MOST_RUNNING, MOST_WAITING = 256, 64
"""The most answers on the stages, and waiting ones, that a policy sees."""
MOST_OVERTAKEN, OVERTAKEN_S = 64, 30.0
"""A policy starves the prompt of the highest rank if more prompts than this overtake it, for more than these seconds,
and it gets less than a share of 1 in as many tokens. Prompts are then served by rank for as many seconds."""


@dataclass(frozen=True, slots=True)
class StepPrompts:
    """The answers on the stages, and the room of a step beside its decodes."""

    max_tokens: int
    num_places: int
    prefills: Listing[Sequence]
    """Those with prompt tokens to compute, by rank."""
    ranked: Listing[Sequence]
    """All of them, by rank."""


class PromptViews:
    """The views of the answers that a policy sees, made when it looks at them."""

    def __init__(self, prompts: StepPrompts, cache: SequenceCache, now: float) -> None:
        self.prompts = prompts
        self._cache = cache
        self._now = now

    @cached_property
    def running(self) -> list[Sequence]:
        """The answers on the stages that are shown."""
        prefills = self.prompts.prefills
        known = set(prefills)
        others = (one for one in self.prompts.ranked if one.seq is not None and one not in known)
        return list(islice(chain(prefills, others), MOST_RUNNING))

    @cached_property
    def waiting(self) -> list[Sequence]:
        """The waiting answers that are shown."""
        return self._cache.waiting.list_first(MOST_WAITING)

    def show_running(self) -> tuple[PromptView, ...]:
        """Return the views of the answers on the stages."""
        num_prefills = len(self.prompts.prefills)
        return tuple(
            self._show(index, sequence, sequence.num_missing if index < num_prefills else 0, sequence.num_cached or 0)
            for index, sequence in enumerate(self.running)
        )

    def show_waiting(self) -> tuple[PromptView, ...]:
        """Return the views of the waiting answers."""
        views, num_looked_up = [], 0
        for index, sequence in enumerate(self.waiting, len(self.running)):
            if sequence.num_found is None and num_looked_up < MOST_LOOKED_UP:
                num_looked_up += count_look_up(sequence)
                match = self._cache.find(sequence).match
                sequence.num_found = match.length if match else 0
            cached = sequence.num_found or 0
            views.append(self._show(index, sequence, sequence.num_tokens - cached, cached))
        return tuple(views)

    def _show(self, index: int, sequence: Sequence, remaining: int, cached: int) -> PromptView:
        request, begun = sequence.request, sequence.context.timeline.begun
        return PromptView(
            index=index,
            remaining=remaining,
            num_prompt=sequence.num_prompt,
            cached=cached,
            num_output=len(sequence.output),
            age_s=self._now - sequence.arrived + request.waited_s,
            begun_s=0.0 if begun is None else self._now - begun,
            priority=request.priority,
            client=request.client,
        )


class LazyView(SchedulingView):
    """A view that makes each part when the policy first looks at it."""

    def __init__(self, views: PromptViews) -> None:
        vars(self).update(max_tokens=views.prompts.max_tokens, num_places=views.prompts.num_places, _views=views)
        self._views: PromptViews

    @cached_property
    def running(self) -> tuple[PromptView, ...]:
        """The answers on the stages."""
        return self._views.show_running()

    @cached_property
    def waiting(self) -> tuple[PromptView, ...]:
        """The answers that wait."""
        return self._views.show_waiting()


@dataclass(slots=True)
class Overtaking:
    """The prompts that have come before one of a higher rank."""

    since: float
    num_prompts: int = 0
    num_tokens: int = 0
    """The tokens of prompts of lower rank, in the same steps."""
    num_own: int = 0
    """The tokens that it got itself."""

    def starves(self, now: float) -> bool:
        """Return whether the prompt is starved; see `MOST_OVERTAKEN`."""
        is_long = self.num_prompts > MOST_OVERTAKEN and now - self.since > OVERTAKEN_S
        return is_long and self.num_own * MOST_OVERTAKEN < self.num_tokens


class PromptOrder:
    """The order in which prompts are served in one step after another: a policy's, or by rank if it starves one."""

    def __init__(self, policy: SchedulingPolicy, note_fault: Callable[[str], None]) -> None:
        """Ask ``policy``, guarded against invalid answers; ``note_fault`` is called with its other faults."""
        self._policy = policy
        self._note_fault = note_fault
        self._first: Sequence | None = None
        """The prompt of the highest rank, if the policy serves others before it in this step."""
        self._overtaken: dict[Sequence, Overtaking] = {}
        self._by_rank_until = -math.inf

    def ask(self, prompts: StepPrompts, cache: SequenceCache, now: float) -> list[tuple[Sequence, int]]:
        """Return the prompts that come first, in order, and the most tokens of each; all others follow by rank."""
        if now < self._by_rank_until:
            return []
        views = PromptViews(prompts, cache, now)
        view = LazyView(views)
        shares = self._policy.order(view)
        if not shares:
            return []
        sequences, shown = (*views.running, *views.waiting), (*view.running, *view.waiting)
        spare = view.max_tokens - sum(tokens for _, tokens in shares)
        served: list[tuple[Sequence, int]] = []
        for index, tokens in shares:
            if not (wanted := shown[index].remaining):
                continue
            more = max(0, min(spare, wanted - tokens))
            spare -= more
            served.append((sequences[index], view.max_tokens if tokens + more == wanted else tokens + more))
        first = _find_first(prompts, cache)
        self._first = None if served[:1] == [(first, view.max_tokens)] else first
        return served

    def note(self, chosen: Mapping[Sequence, int], now: float) -> None:
        """Note the tokens of each sequence in a step, for which the policy may have been asked."""
        first, self._first = self._first, None
        if first is None:
            return
        count = chosen.get(first, 0)
        if count == first.num_missing:
            self._overtaken.pop(first, None)
            return
        later = [(one, num) for one, num in chosen.items() if one.rank > first.rank and not one.output]
        if not later:
            return
        if (passed := self._overtaken.get(first)) is None:
            self._overtaken = {each: known for each, known in self._overtaken.items() if not each.is_over}
            passed = self._overtaken[first] = Overtaking(now)
        passed.num_prompts += sum(num == one.num_missing for one, num in later)
        passed.num_tokens += sum(num for _, num in later)
        passed.num_own += count
        if passed.starves(now):
            self._by_rank_until = now + OVERTAKEN_S
            self._note_fault(
                f"starves prompts: {passed.num_prompts} of lower rank came before one of {first.num_prompt} tokens"
                f" in {now - passed.since:.0f} seconds"
            )


def _find_first(prompts: StepPrompts, cache: SequenceCache) -> Sequence | None:
    """Return the prompt of the highest rank that could have tokens in the step."""
    waiting = cache.waiting.first() if prompts.num_places else None
    able = [*prompts.prefills[:1], *([waiting] if waiting else [])]
    return min(able, key=lambda sequence: sequence.rank, default=None)

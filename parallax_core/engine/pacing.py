"""Limits the prompt tokens of a step beside running answers, so that their tokens come evenly."""

from __future__ import annotations

import math
from dataclasses import dataclass

from parallax_core.engine.stage_clock import StageClock
from parallax_core.engine.step_cost import StepCosts, StepSize

RATIO = 1.4
"""By default, prompts may make the time between two tokens of an answer this many times longer."""
GROWTH_S = 60.0
"""By default, the ratio grows e-fold in this time while prompts wait, and falls as fast while none does."""
LEAST_SHARE = 0.1
"""The share of the time that prompts get whatever the target is, so that each progresses."""
UNMEASURED = 32
"""Prompt tokens that a step may have beside answers before one with half as many was measured."""


@dataclass(slots=True)
class PromptBudget:
    """The prompt tokens that a step may still compute, limited by the seconds that they are predicted to take."""

    costs: StepCosts
    seconds: float = math.inf
    num_tokens: float = math.inf

    @property
    def is_limited(self) -> bool:
        """Whether there is a limit."""
        return self.num_tokens < math.inf

    @property
    def is_spent(self) -> bool:
        """Whether there is no room for a further token."""
        return self.seconds <= 0 or self.num_tokens < 1

    def limit(self, start: int, count: int) -> int:
        """Return how many of ``count`` prompt tokens from ``start`` on fit; one always does unless all is spent."""
        if self.is_spent:
            return 0
        return max(1, int(min(count, self.num_tokens, self.costs.fit_prompt(self.seconds, start))))

    def take(self, start: int, count: int) -> None:
        """Deduct ``count`` prompt tokens from ``start`` on."""
        self.num_tokens -= count
        self.seconds -= self.costs.predict_prompt(start, count)
        if self.costs.fit_prompt(self.seconds, start + count) < 1:
            self.seconds = 0.0


@dataclass(frozen=True, slots=True)
class StreamLoad:
    """The answers that begin to stream, or will once their prompts are computed."""

    num_begun: int
    is_in_flight: bool
    """Whether a step in flight computes a token of one that has begun."""
    num_present: int
    """Begun or not, as far as there are places."""


class Pacer:
    """Limits the prompts in each step, by predicted step times and a target for the time between two tokens.

    A target that is not given is `RATIO` times the time that the answers to all present requests would take without
    prompts, as they will once their prompts are computed; if prompts wait for long, the ratio grows, see `GROWTH_S`.

    (Limited prompts beside decodes: Sarathi-Serve, OSDI 2024; here the limit follows from measured times.)
    """

    def __init__(self, clock: StageClock, target_s: float | None = None) -> None:
        """Pace the stages that ``clock`` measures; ``target_s`` None: see above; infinity: no limit."""
        self.clock = clock
        self._target_s = target_s
        self._ratio = RATIO
        self._decodes = StepSize()
        """Those of the last step with decodes."""
        self._most = UNMEASURED
        self._noted: float | None = None
        """The time of the last step."""

    def make_budget(self, decodes: StepSize, load: StreamLoad) -> PromptBudget:
        """Return the budget of a step with ``decodes``."""
        clock, costs = self.clock, self.clock.costs
        is_beside = decodes.num_decodes > 0 or load.is_in_flight
        if not is_beside or not costs.num_steps or self._target_s == math.inf:
            return PromptBudget(costs)
        self._decodes = decodes if decodes.num_decodes else self._decodes
        groups = min(clock.num_stages, max(1, load.num_begun))
        alone_s, passes = costs.predict(self._decodes), max(groups, clock.spread)
        if not alone_s:
            return PromptBudget(costs, num_tokens=UNMEASURED)
        all_s = costs.predict(self._decodes.scale(-(-load.num_present // groups)))
        longest_s = self._find_longest(alone_s * passes + clock.links_s, all_s * passes + clock.links_s) - clock.links_s
        within_s, apart_s = longest_s / passes - alone_s, 0.0
        if groups < clock.num_stages:  # stages are idle for a time, in which steps without decodes could be computed
            num_apart = max(1, clock.most_in_flight - groups)
            apart_s = (longest_s - groups * alone_s) / num_apart - costs.predict(StepSize())
            within_s = 0.0 if apart_s * num_apart > within_s else within_s
        seconds = within_s if decodes.num_decodes else 0.0 if within_s else apart_s
        return PromptBudget(costs, seconds, self._most)

    def note(self, budget: PromptBudget, num_taken: int, *, is_short: bool, now: float) -> None:
        """Record that a step has ``num_taken`` prompt tokens; it is short if it does not complete all prompts."""
        if budget.is_limited and num_taken:
            self._most = max(UNMEASURED, 2 * num_taken)
        passed_s = 0.0 if self._noted is None else now - self._noted
        is_held = is_short and budget.is_limited and budget.is_spent
        growth_s = min(passed_s, GROWTH_S) if is_held else -passed_s  # a process may have been stopped for days
        self._ratio = max(RATIO, self._ratio * math.exp(growth_s / GROWTH_S))
        self._noted = now

    def _find_longest(self, alone_s: float, all_s: float) -> float:
        """Return the longest time between two tokens.

        Args:
            alone_s: that time without prompts, now.
            all_s: the same if all present requests had begun.
        """
        if self._target_s is None:
            return self._ratio * all_s
        return max(self._target_s, alone_s / (1 - LEAST_SHARE))

"""Measures step times of stages and latencies of links, and sets the number of steps in flight."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean, median
from typing import NamedTuple

from parallax_core.contracts.stage import Row
from parallax_core.contracts.status import StepTime
from parallax_core.engine.prompt_pieces import Pace, choose_piece
from parallax_core.engine.step_cost import StepCosts, StepSize, measure_rows
from parallax_core.engine.step_limit import StepLimit

RECENT = 64
"""The number of recent steps that count."""
WINDOW = 32
"""The number of recent steps whose round trips count."""
RETHOUGHT = 8
"""The number of steps after which the number in flight is thought over."""
UNKNOWN = (0, 0, 0), False
MOST_IN_FLIGHT = 16
"""The most steps in flight: a new request waits behind all of them."""


@dataclass(slots=True)
class StepTimes:
    """The times of one step: by the head's clock, except for computing, which each stage measures by its own."""

    num_stages: int
    departed: float
    num_before: int = 0
    """The steps in flight when it was planned."""
    size: StepSize = field(default_factory=StepSize)
    seconds: dict[int, float] = field(default_factory=dict)
    """Seconds of computing by stage, as reported."""
    reported: dict[int, float] = field(default_factory=dict)
    """The time of each stage's report, unless it came after the answers."""
    returned: float | None = None
    """The time of the answers."""
    sampling_s: float = 0.0
    """Part of the last stage's seconds; 0: not measured."""
    _parts: list[float] | None = None
    """The cached result of `split`, which every request of the step needs."""

    def note(self, stage: int, seconds: float) -> None:
        """Record how long a stage computed the step."""
        self.seconds[stage] = seconds
        self._parts = None

    def split(self) -> list[float]:
        """Return the parts of the step's time, in seconds: computing by stage, the hop to each stage, then sampling.

        A hop is the time between two reports, without the computing: the link, and waiting for earlier steps. If a
        report came after the answers, its hop is part of the next. Hops and computing add up to the round trip.
        """
        if self._parts is None:
            self._parts = self._split()
        return self._parts

    def _split(self) -> list[float]:
        hops, before, computed = [0.0] * self.num_stages, self.departed, 0.0
        for stage in range(self.num_stages):
            computed += self.seconds.get(stage, 0.0)
            at = self.reported.get(stage)
            if at is not None:
                hops[stage] = max(0.0, at - before - computed)
                before, computed = at, 0.0
        return [self.seconds.get(stage, 0.0) for stage in range(self.num_stages)] + [*hops, self.sampling_s]


class FinishedStep(NamedTuple):
    """A step with rows whose answers and reports have all arrived."""

    size: StepSize
    seconds: Sequence[float]
    """Of computing, by stage; more than 0."""
    departed: float
    returned: float
    num_before: int
    """The steps in flight when it departed."""


class StageClock:
    """Times of recent steps. Uses durations and the head's clock; no clocks need to agree."""

    def __init__(self, num_stages: int) -> None:
        self.steps = [0] * num_stages
        """Finished steps with rows by stage, since the head started or the number of stages changed."""
        self.tokens = [0] * num_stages
        """Computed tokens by stage, since the same time."""
        self.num_stages = num_stages
        self._seconds: list[deque[float]] = [deque(maxlen=RECENT) for _ in range(num_stages)]
        self._hops: deque[float] = deque(maxlen=RECENT)
        self._known = UNKNOWN
        """Whether a further step is faster, and for what: answers, steps, and `RETHOUGHT` steps noted."""
        self._decodes = StepSize()
        """The rows of the last step with decodes."""
        self._alone = 0, 0.0
        """The prompt tokens of the last step that departed beside no other, and its seconds on the first stage."""
        self.restart()
        self._forget_times()

    @property
    def hop_s(self) -> float | None:
        """The median latency of a link, in seconds, from lone steps: round trip minus computing, divided by links."""
        return median(self._hops) if self._hops else None

    @property
    def links_s(self) -> float:
        """The seconds of a step on all links; 0: not known."""
        return (self.hop_s or 0.0) * (self.num_stages + 1)

    @property
    def spread(self) -> float:
        """The seconds of a step on all stages, divided by those on the slowest one."""
        times = [median(recent) for recent in self._seconds if recent]
        return sum(times) / max(times) if times and max(times) > 0 else float(self.num_stages)

    def step_time(self, stage: int) -> StepTime | None:
        """Return how long a stage took for recent steps, or None if there were none."""
        recent = self._seconds[stage]
        return StepTime(mean_s=fmean(recent), median_s=median(recent)) if recent else None

    def limit_s(self, stage: int, num_tokens: int) -> float:
        """Return the seconds after which a step of ``num_tokens`` tokens counts as hung on ``stage``."""
        return self._limits[stage].find(num_tokens)

    def depart(self, now: float, rows: Sequence[Row], num_before: int) -> StepTimes:
        """Record the departure of a step with ``rows``, beside ``num_before`` others in flight."""
        size = measure_rows(rows)
        self._decodes = size if size.num_decodes else self._decodes
        return StepTimes(self.num_stages, now, num_before, size)

    def note(self, times: StepTimes, stage: int, num_tokens: int, now: float | None) -> None:
        """Record a stage's report on a step with rows. ``times`` has its seconds; ``now`` is its arrival, if known."""
        self.steps[stage] += 1
        self.tokens[stage] += num_tokens
        self._seconds[stage].append(times.seconds[stage])
        self._limits[stage].note(num_tokens, times.seconds[stage])
        if times.returned is None and now is not None:
            times.reported[stage] = now
        self._conclude(times)

    def arrive(self, times: StepTimes, now: float, sampling_s: float = 0.0) -> None:
        """Record the arrival of a step's answers, and choose the number of steps in flight.

        It keeps the slowest stage busy: as many steps as it computes in a round trip, however slow the links are. This
        is the bandwidth-delay product of the pipeline, estimated from the least round trip as BBR does for a network
        (ACM Queue 14(5), 2016). A single stage has one step at a time, and those it takes ahead.
        """
        times.returned, times.sampling_s = now, sampling_s
        slowest = max(times.seconds.values(), default=0.0)
        if slowest > 0 and self.num_stages > 1:
            self._round_trips.append(now - times.departed)
            self._slowest.append(slowest)
            self._fit_in_flight()
        self._conclude(times)

    def note_finished(self, steps: Sequence[FinishedStep]) -> None:
        """Learn from steps of which all is known, as `note` and `arrive` do one by one; for simulations.

        The counts of steps and tokens are left as they are.
        """
        for step in steps:
            self._learn(step)
            for recent, limit, each_s in zip(self._seconds, self._limits, step.seconds, strict=True):
                recent.append(each_s)
                limit.note(step.size.num_decodes + step.size.num_prompt, each_s)
            if self.num_stages > 1:
                self._round_trips.append(step.returned - step.departed)
                self._slowest.append(max(step.seconds))
        if self.num_stages > 1:
            self._fit_in_flight()

    def may_depart(self, in_flight: Sequence[StepSize], num_answers: int) -> bool:
        """Whether a further step may depart beside those in flight, which divide ``num_answers`` among them.

        Beside decodes alone one step for each stage suffices, if a further one, which reads the weights again, takes
        longer than the links that it hides.
        """
        fewer, more, num = self.num_stages, self.most_in_flight, len(in_flight)
        if num < fewer or num >= more or fewer == 1 or any(size.num_prompt for size in in_flight):
            return num < more
        if (key := (num_answers, more, self.costs.num_steps // RETHOUGHT)) != self._known[0]:
            waits_s, spread = min(self._waits, default=0.0), self.spread
            sizes = [(steps, self._decodes.scale(-(-num_answers // steps))) for steps in (fewer, more)]
            times = [(steps, self.costs.predict(size)) for steps, size in sizes]
            few_s, many_s = (max(steps * each_s, spread * each_s + waits_s) for steps, each_s in times)
            self._known = key, many_s < few_s
        return self._known[1]

    def cut_prompt(self, num_tokens: int, most: int) -> int:
        """Return the tokens of each piece of a prompt that is alone: at most ``most``; see `choose_piece`."""
        if self.num_stages == 1 or num_tokens <= 1:
            return num_tokens
        stages = [limit.list_typical() for limit in self._limits]
        pace = Pace(self.links_s, self.most_in_flight, median(self._crowding or [1.0]))
        return min(most, choose_piece(stages, num_tokens, most, pace))

    def _fit_in_flight(self) -> None:
        fitting = round(min(self._round_trips) / median(self._slowest))
        self.most_in_flight = max(self.num_stages + 1, min(MOST_IN_FLIGHT, fitting))

    def restart(self, steps_ahead: int = 0) -> None:
        """Forget round trips: another epoch begins. ``steps_ahead`` is `StageInfo.steps_ahead` of a single stage."""
        self._round_trips: deque[float] = deque(maxlen=WINDOW)
        self._slowest: deque[float] = deque(maxlen=WINDOW)
        self._waits: deque[float] = deque(maxlen=WINDOW)
        """The seconds on links, and before busy stages, of decodes that no step was surplus beside."""
        self._known = UNKNOWN
        # With several stages one more: its answers are on their way back.
        self.most_in_flight = 1 + steps_ahead if self.num_stages == 1 else self.num_stages + 1
        """The number of steps that may be in flight now."""

    def replace(self, num_stages: int) -> StageClock:
        """Return the clock of the stages that replace these, for which nothing is known of how long steps may take."""
        if num_stages != self.num_stages:
            return StageClock(num_stages)
        self._forget_times()
        return self

    def _forget_times(self) -> None:
        self.costs = StepCosts()
        """Predicts the seconds of a step on the stage that takes longest for it."""
        self._limits = [StepLimit() for _ in range(self.num_stages)]
        self._crowding: deque[float] = deque(maxlen=RETHOUGHT)
        """How many times as long as alone steps took while all stages computed: above 1 where they share."""

    def _conclude(self, times: StepTimes) -> None:
        """Learn from a step once its answers and all reports are here."""
        if times.returned is not None and len(times.seconds) == self.num_stages and times.size != StepSize():
            seconds = tuple(times.seconds[stage] for stage in range(self.num_stages))
            self._learn(FinishedStep(times.size, seconds, times.departed, times.returned, times.num_before))

    def _learn(self, step: FinishedStep) -> None:
        """Learn the costs of steps and the time on links from a step."""
        size, seconds, departed, returned, num_before = step
        self.costs.note(size, max(seconds))
        if not num_before:
            self._alone = size.num_prompt, seconds[0]
        elif num_before == self.num_stages - 1 and size.num_prompt == self._alone[0] > 0 and self._alone[1]:
            self._crowding.append(seconds[0] / self._alone[1])
        waited_s = max(0.0, returned - departed - sum(seconds))
        if not num_before:
            self._hops.append(waited_s / (self.num_stages + 1))
        if num_before < self.num_stages and not size.num_prompt:
            self._waits.append(waited_s)

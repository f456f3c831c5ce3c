"""Measures step times of the stages, by their own clocks, and the latency of the links between them."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from statistics import fmean, median

from parallax_core.contracts.status import StepTime

RECENT = 64
"""The number of recent steps that count."""


@dataclass(slots=True)
class LoneStep:
    """A step that had the pipeline to itself."""

    number: int
    departed: float
    returned: float | None = None
    seconds: dict[int, float] = field(default_factory=dict)
    """Seconds of computing by stage, as reported."""


class StageClock:
    """Times of recent steps with rows. Uses durations and the head's clock; no clocks need to agree."""

    def __init__(self, num_stages: int) -> None:
        self.steps = [0] * num_stages
        """Finished steps by stage, since the head started."""
        self.tokens = [0] * num_stages
        """Computed tokens by stage, since the head started."""
        self._seconds: list[deque[float]] = [deque(maxlen=RECENT) for _ in range(num_stages)]
        self._hops: deque[float] = deque(maxlen=RECENT)
        self._lone: LoneStep | None = None

    @property
    def hop_s(self) -> float | None:
        """The median latency of a link, in seconds, from lone steps: round trip minus computing, divided by links."""
        return median(self._hops) if self._hops else None

    def step_time(self, stage: int) -> StepTime | None:
        """Return how long a stage took for recent steps, or None if there were none."""
        recent = self._seconds[stage]
        return StepTime(mean_s=fmean(recent), median_s=median(recent)) if recent else None

    def depart(self, number: int, now: float) -> None:
        """Record the departure of a step while no other is in flight."""
        self._lone = LoneStep(number, now)

    def note(self, stage: int, number: int, num_tokens: int, seconds: float) -> None:
        """Record how long a stage took for a step."""
        self.steps[stage] += 1
        self.tokens[stage] += num_tokens
        self._seconds[stage].append(seconds)
        if self._lone is not None and self._lone.number == number:
            self._lone.seconds[stage] = seconds
            self._conclude(self._lone)

    def arrive(self, number: int, now: float) -> None:
        """Record the arrival of a step's answers."""
        if self._lone is not None and self._lone.number == number:
            self._lone.returned = now
            self._conclude(self._lone)

    def restart(self) -> None:
        """Forget the lone step in flight: another epoch begins."""
        self._lone = None

    def _conclude(self, lone: LoneStep) -> None:
        """Count a lone step once its answers and all reports are here; a report may arrive after the answers."""
        num_stages = len(self._seconds)
        if lone.returned is not None and len(lone.seconds) == num_stages:
            on_links = lone.returned - lone.departed - sum(lone.seconds.values())
            self._hops.append(max(0.0, on_links) / (num_stages + 1))
            self._lone = None

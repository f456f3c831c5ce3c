"""How fast the stages of a pipeline are, by their own clocks, and what the links between them take."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from statistics import fmean, median

from parallax_core.contracts.status import StepTime

RECENT = 64
"""So many of the last steps count."""


@dataclass(slots=True)
class LoneStep:
    """A step that had the pipeline to itself."""

    number: int
    departed: float
    returned: float | None = None
    seconds: dict[int, float] = field(default_factory=dict)
    """What each stage says it took."""


class StageClock:
    """Times of the last steps with rows. Needs no clock but that of the head, and no two clocks that agree."""

    def __init__(self, num_stages: int) -> None:
        self.steps = [0] * num_stages
        """Finished by each stage, since the head began."""
        self.tokens = [0] * num_stages
        """Computed by each stage, since the head began."""
        self._seconds: list[deque[float]] = [deque(maxlen=RECENT) for _ in range(num_stages)]
        self._hops: deque[float] = deque(maxlen=RECENT)
        self._lone: LoneStep | None = None

    @property
    def hop_s(self) -> float | None:
        """What a link takes: the median of what lone steps took beside the stages, by the links each passed."""
        return median(self._hops) if self._hops else None

    def step_time(self, stage: int) -> StepTime | None:
        """Return how long recent steps took a stage; None: there was none."""
        recent = self._seconds[stage]
        return StepTime(mean_s=fmean(recent), median_s=median(recent)) if recent else None

    def depart(self, number: int, now: float) -> None:
        """A step is planned while no other is in flight."""
        self._lone = LoneStep(number, now)

    def note(self, stage: int, number: int, num_tokens: int, seconds: float) -> None:
        """A stage says how long it took for a step."""
        self.steps[stage] += 1
        self.tokens[stage] += num_tokens
        self._seconds[stage].append(seconds)
        if self._lone is not None and self._lone.number == number:
            self._lone.seconds[stage] = seconds
            self._conclude(self._lone)

    def arrive(self, number: int, now: float) -> None:
        """The answers of a step are there."""
        if self._lone is not None and self._lone.number == number:
            self._lone.returned = now
            self._conclude(self._lone)

    def restart(self) -> None:
        """Nothing is in flight any more: another epoch begins."""
        self._lone = None

    def _conclude(self, lone: LoneStep) -> None:
        """Count a lone step once all is known of it; what a stage before the last says may come after the answers."""
        num_stages = len(self._seconds)
        if lone.returned is not None and len(lone.seconds) == num_stages:
            beside = lone.returned - lone.departed - sum(lone.seconds.values())
            self._hops.append(max(0.0, beside) / (num_stages + 1))
            self._lone = None

"""Timelines of requests, and the counters of a head."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import zip_longest

from parallax_core.contracts.engine import Pause, Timing
from parallax_core.engine.stage_clock import MOST_IN_FLIGHT, StepTimes

MOST_STEPS = 64
"""Steps of a request whose times are kept one by one: stages may still report on the last ones."""

Timer = Callable[[], float]
"""Returns seconds since a fixed moment."""


def stand_still() -> float:
    """Return 0, as a `Timer` that measures nothing."""
    return 0.0


@dataclass(slots=True)
class Timeline:
    """The times of one request, in seconds of the head's clock."""

    arrived: float
    begun: float | None = None
    """The time at which its first step was planned."""
    first: float | None = None
    """The time of its first token."""
    latest: float = 0.0
    """The time of its last event."""
    detokenize_s: float = 0.0
    """Seconds of detokenizing."""
    steps: list[StepTimes] = field(default_factory=list)
    """The last steps with rows of the request."""
    stages_s: list[float] = field(default_factory=list)
    """Seconds of computing by stage, of the steps before these."""
    hops_s: list[float] = field(default_factory=list)
    """Seconds on the way to each stage, of the same steps."""
    sampling_s: float = 0.0
    """Seconds of sampling, of the same steps."""
    paused: float | None = None
    """The time at which a stage was lost, while the request waits for another; None: it does not."""
    pauses: list[Pause] = field(default_factory=list)
    """The times it has waited for lost stages to be replaced."""

    def begin(self, times: StepTimes) -> bool:
        """Record a planned step with a row of the request; return whether it is the first."""
        steps, is_first = self.steps, self.begun is None
        if is_first:
            self.begun = times.departed
        self.latest = times.departed
        if not steps or steps[-1] is not times:  # another answer to the request may be in it
            steps.append(times)
            if len(steps) >= MOST_STEPS:
                self._sum_up(len(steps) - MOST_IN_FLIGHT)
        return is_first

    def advance(self, now: float) -> None:
        """Record the arrival of a token."""
        if self.first is None:
            self.first = now
        self.latest = now

    def pause(self, now: float) -> None:
        """Record the loss of a stage."""
        if self.paused is None:
            self.paused = now

    def resume(self, now: float) -> None:
        """Record that the lost stage was replaced, or that the request waits no longer. Does nothing without a loss."""
        if self.paused is not None:
            self.pauses.append(Pause(self.paused - self.arrived, now - self.paused))
            self.latest, self.paused = now, None

    def read(self) -> Timing:
        """Return the parts of the time from its arrival to its last event."""
        pauses = tuple(self.pauses)
        recovery_s = sum(pause.took_s for pause in pauses)
        if self.begun is None:
            return Timing(queued_s=max(0.0, self.latest - self.arrived), recovery_s=recovery_s, pauses=pauses)
        self._sum_up(len(self.steps))
        first = self.latest if self.first is None else self.first
        return Timing(
            queued_s=self.begun - self.arrived,
            prefill_s=first - self.begun,
            decode_s=self.latest - first,
            stages_s=tuple(self.stages_s),
            hops_s=tuple(self.hops_s),
            sampling_s=self.sampling_s,
            detokenize_s=self.detokenize_s,
            recovery_s=recovery_s,
            pauses=pauses,
        )

    def _sum_up(self, count: int) -> None:
        """Add the ``count`` oldest steps to the sums, without those that were lost or are still in flight."""
        returned = [times for times in self.steps[:count] if times.returned is not None]
        parts = [(times.num_stages, times.split()) for times in returned]
        self.stages_s = _sum_columns([self.stages_s, *(split[:num] for num, split in parts)])
        self.hops_s = _sum_columns([self.hops_s, *(split[num : 2 * num] for num, split in parts)])
        self.sampling_s += sum(times.sampling_s for times in returned)
        del self.steps[:count]


@dataclass(slots=True)
class EngineCounters:
    """Counters of a head since it started."""

    steps: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    preemptions: int = 0
    requests_replayed: int = 0
    requests_lost: int = 0


def _sum_columns(rows: list[list[float]]) -> list[float]:
    """Add up lists place by place; pipelines that followed each other may differ in their number of stages."""
    return [sum(column) for column in zip_longest(*rows, fillvalue=0.0)]

"""Timelines of requests, and the counters of a head."""

from __future__ import annotations

from dataclasses import dataclass, field

from parallax_core.contracts.engine import Timing


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
    stages: dict[int, float] = field(default_factory=dict)
    """Seconds of computing by stage, in steps with rows of the request."""

    def begin(self, now: float) -> bool:
        """Record a planned step with a row of the request; return whether it is the first."""
        is_first = self.begun is None
        if is_first:
            self.begun = now
        self.latest = now
        return is_first

    def advance(self, now: float) -> None:
        """Record the arrival of a token."""
        if self.first is None:
            self.first = now
        self.latest = now

    def read(self) -> Timing:
        """Return the parts of the time from its arrival to its last event."""
        if self.begun is None:
            return Timing(queued_s=max(0.0, self.latest - self.arrived))
        first = self.latest if self.first is None else self.first
        return Timing(
            queued_s=self.begun - self.arrived,
            prefill_s=first - self.begun,
            decode_s=self.latest - first,
            stages_s=tuple(self.stages.get(stage, 0.0) for stage in range(max(self.stages, default=-1) + 1)),
        )


@dataclass(slots=True)
class EngineCounters:
    """Counters of a head since it started."""

    steps: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    preemptions: int = 0

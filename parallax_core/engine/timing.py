"""Where the time of a request goes, and what a head has done."""

from __future__ import annotations

from dataclasses import dataclass, field

from parallax_core.contracts.engine import Timing


@dataclass(slots=True)
class Timeline:
    """The times of one request, on whatever clock the head is given."""

    arrived: float
    begun: float | None = None
    """When the first step with a row of it was planned."""
    first: float | None = None
    """When its first token was there."""
    latest: float = 0.0
    """When something last happened to it."""
    stages: dict[int, float] = field(default_factory=dict)
    """Seconds each stage computed steps with rows of it."""

    def begin(self, now: float) -> bool:
        """A step with a row of it is planned; return whether it is the first."""
        is_first = self.begun is None
        if is_first:
            self.begun = now
        self.latest = now
        return is_first

    def advance(self, now: float) -> None:
        """A token of it is there."""
        if self.first is None:
            self.first = now
        self.latest = now

    def read(self) -> Timing:
        """Return the parts of the time between its arrival and what happened last."""
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
    """What a head has done since it began."""

    steps: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    preemptions: int = 0

"""Passes steps through the stages and links of a pipeline, in virtual time."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from parallax_core.cluster.simulate.step_time import StepWork

if TYPE_CHECKING:
    from parallax_core.cluster.simulate.pipeline import PipelineModel


@dataclass(slots=True)
class Passage:
    """The times of a step, which are known when it departs."""

    departed: float
    returned: float = 0.0
    """When its answers are at the head."""
    seconds: list[float] = field(default_factory=list)
    """What each stage computes."""
    reported: list[float] = field(default_factory=list)
    """When the head has the report of each stage."""


class StepPath:
    """Steps pass the stages in their order, and a stage or link computes or carries one at a time."""

    def __init__(self, model: PipelineModel) -> None:
        self._model = model
        num_stages = len(model.stages)
        self._free_at = [0.0] * num_stages
        self._link_free_at = [0.0] * num_stages
        self.busy_s = [0.0] * num_stages
        """Seconds that each stage has computed."""

    def depart(self, work: StepWork, now: float) -> Passage:
        """Return the times of a step that departs now; one without rows takes no time to compute."""
        model, passage, at = self._model, Passage(now), now
        for stage, timed in enumerate(model.stages):
            at = self._cross(stage, at, work)
            seconds = timed.measure(work) if work.num_rows else 0.0
            at = max(at, self._free_at[stage]) + seconds
            self._free_at[stage] = at
            self.busy_s[stage] += seconds
            passage.seconds.append(seconds)
            passage.reported.append(at + model.back_s)
        passage.returned = at + model.back_s
        return passage

    def shift(self, by_s: float) -> None:
        """Let the stages and links be free so much later."""
        self._free_at = [at + by_s for at in self._free_at]
        self._link_free_at = [at + by_s for at in self._link_free_at]

    def _cross(self, stage: int, at: float, work: StepWork) -> float:
        """Return when a step that leaves the stage before at ``at`` is here; a link carries one after the other."""
        copied = max(at, self._link_free_at[stage]) + work.num_tokens * self._model.copy_s[stage]
        self._link_free_at[stage] = copied
        return copied + self._model.ways_s[stage]

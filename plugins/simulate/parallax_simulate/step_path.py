"""Passes steps through the stages and links of a pipeline, in virtual time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from parallax_cluster.step_time import StepWork

if TYPE_CHECKING:
    from parallax_simulate.pipeline import PipelineModel


@dataclass(slots=True)
class Passage:
    """The times of a step, which are known when it departs."""

    departed: float
    seconds: Sequence[float]
    """What each stage computes."""
    returned: float = 0.0
    """When its answers are at the head."""
    carried: list[float] = field(default_factory=list)
    """When the link to each stage is free again."""
    computed: list[float] = field(default_factory=list)
    """When each stage has computed it."""


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
        seconds = [timed.measure(work) if work.num_rows else 0.0 for timed in self._model.stages]
        self.charge(seconds)
        return self.send(seconds, work.num_tokens, now)

    def charge(self, seconds: Sequence[float]) -> None:
        """Count what each stage computes for a step."""
        for stage, each_s in enumerate(seconds):
            self.busy_s[stage] += each_s

    def send(self, seconds: Sequence[float], num_tokens: float, now: float) -> Passage:
        """Return the times of a step that departs now and for which each stage computes ``seconds``."""
        model, at, carried, computed = self._model, now, list[float](), list[float]()
        lanes = zip(self._link_free_at, model.copy_s, model.ways_s, self._free_at, seconds, strict=True)
        for link_free_at, copy_s, way_s, free_at, each_s in lanes:
            at = max(at, link_free_at) + num_tokens * copy_s
            carried.append(at)
            at += way_s
            at = max(at, free_at) + each_s
            computed.append(at)
        self._link_free_at, self._free_at = carried, computed
        return Passage(now, seconds, at + model.back_s, carried, computed)

    def rewind(self, passage: Passage) -> None:
        """Make this step the last one that has departed."""
        self._link_free_at, self._free_at = passage.carried, passage.computed

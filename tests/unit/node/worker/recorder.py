"""A stage that records the order in which its steps are submitted and waited for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from parallax_core.api import Stage, StageBatch, StageOutput, StageResult


@dataclass(frozen=True)
class NotedOutput:
    """The output of a step, which calls ``note`` when it is waited for."""

    output: StageOutput
    note: Callable[[], None]

    def wait(self) -> StageResult:
        self.note()
        return self.output.wait()


class Recorder:
    """Wraps a stage, and records its calls, such as ``step 1`` and ``wait 1``."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self.info, self.edit, self.close = stage.info, stage.edit, stage.close
        self.calls: list[str] = []

    def step(self, batch: StageBatch) -> NotedOutput:
        self.calls.append(f"step {batch.step}")
        return NotedOutput(self._stage.step(batch), lambda: self.calls.append(f"wait {batch.step}"))

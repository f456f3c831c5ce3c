"""A stage that fails on purpose, to test its callers."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from parallax_core.api import BackendFailed, Edit, Stage, StageBatch, StageInfo, StageOutput, StageResult
from parallax_core.base.errors import StageLost

FaultKind = Literal["edit", "step", "wait", "free", "answers", "hang", "die", "exit"]


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault and the time at which it happens.

    ========== ==================================================================================
    ``edit``   `Stage.edit` raises, and nothing has changed
    ``step``   `Stage.step` raises, and nothing has changed
    ``wait``   `StageOutput.wait` raises, after the step was made: the stage is lost
    ``free``   the result says that every pool has one free page less than it has
    ``answers`` the result lacks its last answer
    ``hang``   `Stage.step` does not return until `FaultStage.release` is called
    ``die``    `Stage.step` raises StageLost, and so does everything from then on
    ``exit``   the process ends at once, with status 1
    ========== ==================================================================================
    """

    kind: FaultKind
    at: int = 0
    """The step with the fault, counted from 0; for ``edit``, the call."""
    error: Exception | None = None
    """The error raised by ``edit``, ``step`` and ``wait``; by default a BackendFailed."""


@dataclass(frozen=True, slots=True)
class FaultOutput:
    """The output of a step, with its fault."""

    output: StageOutput
    faults: tuple[Fault, ...]

    def wait(self) -> StageResult:
        """Return the result with its fault."""
        result = self.output.wait()
        for fault in self.faults:
            if fault.kind == "wait":
                raise fault.error or BackendFailed("the step failed on purpose")
            if fault.kind == "free":
                result = replace(result, free=tuple(free - 1 for free in result.free))
            if fault.kind == "answers":
                result = replace(result, answers=result.answers[:-1])
        return result


class FaultStage:
    """Wraps a stage and adds faults; each happens once, except that a dead stage stays dead."""

    def __init__(self, stage: Stage, *faults: Fault) -> None:
        self._stage = stage
        self._faults = faults
        self._released = threading.Event()
        self._dead = False
        self.num_steps = 0
        self.num_edits = 0
        self.hanging = threading.Event()
        """Set when it begins to hang."""

    @property
    def info(self) -> StageInfo:
        """The properties of the stage."""
        return self._stage.info

    def edit(self, edits: Sequence[Edit]) -> None:
        """Edit the other stage, unless a fault says otherwise."""
        self._check_alive()
        self.num_edits += 1
        for fault in self._faults:
            if fault.kind == "edit" and fault.at == self.num_edits - 1:
                raise fault.error or BackendFailed("the edit failed on purpose")
        self._stage.edit(edits)

    def step(self, batch: StageBatch) -> FaultOutput:
        """Step the other stage, unless a fault says otherwise."""
        self._check_alive()
        self.num_steps += 1
        faults = tuple(fault for fault in self._faults if fault.at == self.num_steps - 1)
        for fault in faults:
            self._begin(fault)
        return FaultOutput(self._stage.step(batch), faults)

    def close(self) -> None:
        """Close the other stage; works on what is dead, too."""
        self._stage.close()

    def release(self) -> None:
        """Let hanging steps go on, now and later; may be called on any thread."""
        self._released.set()

    def _begin(self, fault: Fault) -> None:
        match fault.kind:
            case "step":
                raise fault.error or BackendFailed("the step failed on purpose")
            case "hang":
                self.hanging.set()
                self._released.wait()
            case "die":
                self._dead = True
                self._check_alive()
            case "exit":
                os._exit(1)

    def _check_alive(self) -> None:
        if self._dead:
            raise StageLost("the stage died on purpose")

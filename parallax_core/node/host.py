"""A stage as its head's messages reach it."""

from __future__ import annotations

from collections.abc import Sequence

from parallax_core.base.errors import BackendFailed, StageLost
from parallax_core.base.ids import SeqId
from parallax_core.contracts.stage import Drop, Edit, Fork, Open, Stage, StageInfo, StageResult
from parallax_core.engine.head import Step


class StageHost:
    """Runs steps on a stage. Belongs to the stage's thread."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._epoch = 0
        self._open: dict[SeqId, None] = {}

    @property
    def info(self) -> StageInfo:
        """What the stage says of itself."""
        return self._stage.info

    def run(self, step: Step) -> StageResult:
        """Apply the edits of ``step``, then run its batch. A new epoch begins with nothing: what is open is dropped.

        Raises:
            BackendFailed: if the batch failed; the stage goes on with the next epoch.
            StageLost: if an edit failed.
        """
        if step.epoch > self._epoch:
            self._epoch = step.epoch
            self._edit([Drop(seq) for seq in self._open])
        self._edit(step.edits)
        if not step.batch.rows:
            return StageResult()
        try:
            return self._stage.step(step.batch).wait()
        except Exception as error:
            message = f"the model failed on this step: {type(error).__name__}: {error}"
            raise BackendFailed(message) from error

    def close(self) -> None:
        """Close the stage."""
        self._stage.close()

    def _edit(self, edits: Sequence[Edit]) -> None:
        try:
            self._stage.edit(edits)
        except Exception as error:
            message = f"the stage is lost: {type(error).__name__}: {error}"
            raise StageLost(message) from error
        for edit in edits:
            match edit:
                case Open(seq) | Fork(_, seq):
                    self._open[seq] = None
                case Drop(seq):
                    del self._open[seq]

"""A stage as its head's messages reach it."""

from __future__ import annotations

from parallax_core.base.errors import BackendFailed
from parallax_core.base.ids import SeqId
from parallax_core.contracts.stage import Drop, Fork, Open, Stage, StageInfo, StageResult
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
            BackendFailed: if the batch failed; the stage goes on with the next epoch. What an edit raises is raised as
                it is: the stage is lost.
        """
        if step.epoch > self._epoch:
            self._epoch = step.epoch
            self._stage.edit([Drop(seq) for seq in self._open])
            self._open.clear()
        self._stage.edit(step.edits)
        self._note(step)
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

    def _note(self, step: Step) -> None:
        for edit in step.edits:
            match edit:
                case Open(seq) | Fork(_, seq):
                    self._open[seq] = None
                case Drop(seq):
                    del self._open[seq]

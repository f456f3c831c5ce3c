"""Applies Step messages to a stage and reports results."""

from __future__ import annotations

import contextlib
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from parallax_core.base.errors import BackendFailed, StageLost
from parallax_core.base.ids import SeqId
from parallax_core.contracts.stage import Drop, Edit, Fork, Open, Stage, StageInfo, StageOutput, StageResult
from parallax_core.node.worker.compute import begin_rows, finish_rows, is_last
from parallax_core.node.worker.mask_mailbox import MaskMailbox, StepMasks, find_masks
from parallax_core.wire.messages import Failure, Result, Step

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StepOutcome:
    """The messages that follow from a step."""

    report: Result | Failure
    """For the head."""
    onward: Step | None = None
    """For the next stage; None without one, or if the step failed."""


@dataclass(slots=True)
class SubmittedStep:
    """A step that has been submitted and not yet reported."""

    step: Step
    begun: float
    """When it was submitted, by the runtime's clock."""
    output: StageOutput | None = None
    """None: the step has no rows, or failed as it was submitted."""
    error: BackendFailed | StageLost | None = None
    """Why it failed as it was submitted."""
    is_discarded: bool = False
    """Whether an earlier step failed: the result means nothing."""
    masks: StepMasks | None = None
    """The masks that its draws wait for."""

    @property
    def waited_s(self) -> float:
        """Seconds for which it has waited for masks."""
        return self.masks.waited_s if self.masks is not None else 0.0


class StageRuntime:
    """Runs the steps of a head on a stage. Belongs to the stage's thread; other threads may read its counters.

    Every step is submitted, then finished, in order; up to `steps_ahead` later steps are submitted before one is
    finished.
    """

    def __init__(
        self, open_stage: Callable[[], Stage], number: int, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._open_stage = open_stage
        self.number = number
        """The stage's index in the pipeline, from 0."""
        self._clock = clock
        self._stage: Stage | None = None
        self._open: dict[SeqId, None] = {}
        self._submitted: deque[SubmittedStep | StepOutcome | None] = deque()
        """Not yet finished, oldest first; a StepOutcome: settled early; None: discarded."""
        self._newest = 0
        """The last step of the epoch that was submitted; 0: none."""
        self._failed = 0
        """The step of the epoch that has failed: later steps are discarded; 0: none."""
        self._needs_epoch = False
        """Whether later steps had been submitted when it failed: no step of this epoch can be run again."""
        self.fault = ""
        """Why the stage's state is unknown, which makes it useless; empty: the stage works."""
        self.epoch = -1
        """The newest epoch of which a step has come; -1: none."""
        self.step = 0
        """The last step of the epoch that was finished or has failed; 0: none."""
        self.num_steps = 0
        """Steps run since the stage opened."""
        self.num_tokens = 0
        """Tokens computed since the stage opened."""
        self.mailbox: MaskMailbox | None = None
        """The masks that the head sends; None: it sends none."""
        self._begun: tuple[SubmittedStep, float] | None = None
        """The oldest step being computed, and when its computing began."""
        self._finished_at = 0.0
        """When the last step was finished."""

    @property
    def is_lost(self) -> bool:
        """Whether the stage's state is unknown."""
        return bool(self.fault)

    @property
    def num_open(self) -> int:
        """Sequences open."""
        return len(self._open)

    @property
    def steps_ahead(self) -> int:
        """Later steps that may be submitted before a step is finished; see `StageInfo.steps_ahead`."""
        return self._stage.info.steps_ahead if self._stage is not None else 0

    @property
    def num_submitted(self) -> int:
        """Steps that are submitted and not finished."""
        return len(self._submitted)

    @property
    def running(self) -> tuple[int, float]:
        """The oldest step being computed, and for how many seconds; 0 and 0: none.

        Waiting for grammar masks, for another head or for an earlier step is not counted: hang detection needs
        computing time only.
        """
        begun = self._begun
        if begun is None:
            return 0, 0.0
        entry, since = begun
        return entry.step.step, max(0.0, self._clock() - since - entry.waited_s)

    def open(self) -> StageInfo:
        """Open the stage. Errors of the backend are not caught here."""
        self._stage = self._open_stage()
        return self._stage.info

    def reset(self) -> None:
        """Forget all sequences and epochs, for a head that begins anew; a stage that cannot is lost."""
        self._settle_all()
        self._submitted.clear()
        self.epoch, self.step, self._newest, self._failed, self._needs_epoch = -1, 0, 0, 0, False
        if self._stage is not None:
            try:
                self._edit(self._stage, [Drop(seq) for seq in self._open])
            except StageLost as error:
                logger.exception("stage cannot forget stage=%d", self.number)
                self.fault = error.message

    def reopen(self) -> StageInfo:
        """Bring the stage back to its state after `open`: forget everything, or open it again if it is lost."""
        if self._stage is not None and not self.is_lost:
            self.reset()
        if self._stage is None or self.is_lost:
            with contextlib.suppress(Exception):  # it is lost already
                self.close()
            self._open.clear()
            self.fault = ""
            return self.open()
        return self._stage.info

    def submit(self, step: Step) -> None:
        """Apply the edits of ``step`` and submit its rows; `finish` returns its outcome.

        A new epoch begins empty: open sequences are dropped. Steps of an older epoch are discarded, and so are
        steps after a failed one, until its number comes again: then the head knows that the stage is as it was before.
        Raises nothing: every error becomes a `Failure`.
        """
        if step.epoch > self.epoch:
            self._settle_all()
        if self.is_lost or self._is_stale(step):
            self.discard()
            return
        entry = SubmittedStep(step, self._clock())
        if self._begun is None:
            self._begun = entry, entry.begun
        try:
            self._submit(entry)
        except (BackendFailed, StageLost) as error:
            entry.error = error
            self._note_failure(step, error)
        self._submitted.append(entry)

    def discard(self) -> None:
        """Count a step that is not run: its outcome is None."""
        self._submitted.append(None)

    def finish(self) -> StepOutcome | None:
        """Wait for the oldest submitted step and return its outcome; None for a discarded step."""
        entry = self._submitted.popleft()
        return self._settle(entry) if isinstance(entry, SubmittedStep) else entry

    def close(self) -> None:
        """Close the stage, if it is open."""
        self._submitted.clear()
        self._begun = None
        stage, self._stage = self._stage, None
        if stage is not None:
            stage.close()

    def _is_stale(self, step: Step) -> bool:
        if step.epoch != self.epoch:
            return step.epoch < self.epoch
        return bool(self._failed) and step.step != self._failed

    def _submit(self, entry: SubmittedStep) -> None:
        assert self._stage is not None, "the stage is not open"
        step = entry.step
        if step.epoch > self.epoch:
            self.epoch, self.step, self._newest, self._failed, self._needs_epoch = step.epoch, 0, 0, 0, False
            self._edit(self._stage, [Drop(seq) for seq in self._open])
        if self._needs_epoch:
            raise StageLost(f"step {step.step} came again after later steps, without a new epoch")
        if self._failed:
            self._newest, self._failed = self._failed - 1, 0
        if step.step != self._newest + 1:
            raise StageLost(f"step {step.step} came where step {self._newest + 1} was due")
        self._newest = step.step
        entry.begun = self._clock()
        self._edit(self._stage, step.edits)
        if step.rows:
            info = self._stage.info
            entry.masks = find_masks(self.mailbox, step, info.vocab_size) if is_last(info) else None
            entry.output = begin_rows(self._stage, step, entry.masks)

    def _settle_all(self) -> None:
        """Wait for every submitted step; `finish` returns their outcomes."""
        for _ in range(len(self._submitted)):
            self._submitted.append(self.finish())

    def _settle(self, entry: SubmittedStep) -> StepOutcome | None:
        """Wait for a step, which must be the oldest, and return its outcome."""
        try:
            result = self._wait(entry)
        except (BackendFailed, StageLost) as error:
            return self._fail(entry, error)
        finally:
            now = self._clock()
            pending = (each for each in self._submitted if isinstance(each, SubmittedStep))
            self._begun = next(((later, now - later.waited_s) for later in pending), None)
            if entry.masks is not None:
                entry.masks.close()
            since, self._finished_at = max(entry.begun, self._finished_at), now
        if entry.is_discarded:
            return None
        self.step = entry.step.step
        self.num_steps += 1
        self.num_tokens += sum([len(row.tokens) for row in entry.step.rows])
        return self._conclude(entry.step, result, max(0.0, now - since - entry.waited_s))

    def _wait(self, entry: SubmittedStep) -> StageResult:
        assert self._stage is not None, "the stage is not open"
        if entry.error is not None:
            raise entry.error
        return finish_rows(self._stage.info, entry.step, entry.output) if entry.output is not None else StageResult()

    def _fail(self, entry: SubmittedStep, error: BackendFailed | StageLost) -> StepOutcome | None:
        """Report a failed step, and discard the later ones."""
        step, is_first = entry.step, not entry.is_discarded
        if not is_first and isinstance(error, BackendFailed):
            return None  # it follows from the failure of an earlier step
        logger.error("step failed stage=%d epoch=%d step=%d", self.number, step.epoch, step.step, exc_info=error)
        self._note_failure(step, error)
        self.step = step.step
        for later in self._submitted:
            if isinstance(later, SubmittedStep):
                later.is_discarded = self._needs_epoch = True
        named = error.sequences if isinstance(error, BackendFailed) else ()
        return StepOutcome(Failure(step.epoch, step.step, self.number, error.message, self.is_lost, named))

    def _note_failure(self, step: Step, error: BackendFailed | StageLost) -> None:
        self._failed = step.step
        if isinstance(error, StageLost):
            self.fault = error.message

    def _conclude(self, step: Step, result: StageResult, seconds: float) -> StepOutcome:
        assert self._stage is not None, "the stage is not open"
        place = (step.epoch, step.step, self.number)
        if is_last(self._stage.info):
            answers, tensors, sampling_s = result.answers, result.tensors, result.sampling_s
            return StepOutcome(Result(*place, answers, result.free, seconds, tensors, sampling_s))
        onward = Step(step.epoch, step.step, step.edits, step.rows, result.tensors)
        return StepOutcome(Result(*place, (), result.free, seconds), onward)

    def _edit(self, stage: Stage, edits: Sequence[Edit]) -> None:
        try:
            stage.edit(edits)
        except Exception as error:
            message = f"an edit failed: {type(error).__name__}: {error}"
            raise StageLost(message) from error
        for edit in edits:
            match edit:
                case Open(seq) | Fork(_, seq):
                    self._open[seq] = None
                case Drop(seq):
                    del self._open[seq]

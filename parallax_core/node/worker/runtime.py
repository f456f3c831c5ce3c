"""Applies Step messages to a Stage and returns their results."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from parallax_core.base.errors import BackendFailed, StageLost
from parallax_core.base.ids import LeaseId, SeqId
from parallax_core.contracts.stage import Drop, Edit, Fork, Open, Stage, StageBatch, StageInfo, StageResult
from parallax_core.contracts.tensor import FLOATS, Tensor, TensorSpec
from parallax_core.node.executor.compatibility import show_specs
from parallax_core.wire.messages import Failure, Result, Step

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StageKey:
    """Identifies a stage in a pipeline."""

    lease: LeaseId
    """The head's lease of the stage."""
    stage: int
    """The number of the stage in the pipeline, from 0."""


@dataclass(frozen=True, slots=True)
class StepOutcome:
    """The messages that follow from a step."""

    report: Result | Failure
    """The message for the head."""
    onward: Step | None = None
    """The step for the next stage; None if this is the last one or the step failed."""


class StageRuntime:
    """Runs a head's steps on a stage. Belongs to the stage's thread; other threads may read its counts."""

    def __init__(
        self, open_stage: Callable[[], Stage], place: StageKey, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._open_stage = open_stage
        self.place = place
        self._clock = clock
        self._stage: Stage | None = None
        self._open: dict[SeqId, None] = {}
        self._is_down = False
        """Whether a step of this epoch has failed, so that later steps are discarded."""
        self.fault = ""
        """Why the state of the stage is lost and the stage useless; empty: it is not lost."""
        self.epoch = -1
        """The newest epoch of which a step was received; -1: none."""
        self.step = 0
        """The last step of the epoch that was run or failed; 0: none."""
        self.num_steps = 0
        """Steps run since the stage opened."""
        self.num_tokens = 0
        """Tokens computed since then."""
        self._begun: tuple[int, float] | None = None
        """The step being computed and the time it began; None: no step."""

    @property
    def is_lost(self) -> bool:
        """Whether the state of the stage is lost."""
        return bool(self.fault)

    @property
    def num_open(self) -> int:
        """The number of open sequences."""
        return len(self._open)

    @property
    def running(self) -> tuple[int, float]:
        """The step being computed and its seconds so far; ``(0, 0.0)`` if there is none.

        The time excludes waits, such as for grammar masks or another head's turn: it serves to detect a stage whose
        computation hangs.
        """
        begun = self._begun
        return (begun[0], max(0.0, self._clock() - begun[1])) if begun is not None else (0, 0.0)

    def open(self) -> StageInfo:
        """Open the stage; raises whatever the backend raises."""
        self._stage = self._open_stage()
        return self._stage.info

    def reset(self) -> None:
        """Drop all sequences and forget the epoch, for a head that starts over; a stage that fails to is lost."""
        self.epoch, self.step, self._is_down = -1, 0, False
        if self._stage is not None:
            try:
                self._edit(self._stage, [Drop(seq) for seq in self._open])
            except StageLost as error:
                logger.exception("stage cannot forget stage=%d", self.place.stage)
                self.fault = error.message

    def reopen(self) -> StageInfo:
        """Return the stage to its state after `open`: reset it if possible, else open it again."""
        if self._stage is not None and not self.is_lost:
            self.reset()
        if self._stage is None or self.is_lost:
            with contextlib.suppress(Exception):  # the stage is lost already
                self.close()
            self._open.clear()
            self.fault = ""
            return self.open()
        return self._stage.info

    def run(self, step: Step) -> StepOutcome | None:
        """Apply the edits of ``step``, then run its rows; return None for a discarded step.

        A new epoch drops all open sequences. Steps of an older epoch or of another lease are discarded, and so are
        those after a failed step, until the head sends that step's number again: it knows then that the stage's state
        is the one before the failure. It raises nothing: every error becomes a `Failure`.
        """
        if self._is_stale(step) or self.is_lost or step.lease != self.place.lease:
            return None
        self._begun = step.step, self._clock()
        try:
            return self._run(step)
        except (BackendFailed, StageLost) as error:
            logger.exception("step failed stage=%d epoch=%d step=%d", self.place.stage, step.epoch, step.step)
            self._is_down, self.fault = True, error.message if isinstance(error, StageLost) else ""
            place = (step.lease, step.epoch, step.step, self.place.stage)
            named = error.sequences if isinstance(error, BackendFailed) else ()
            return StepOutcome(Failure(*place, error.message, self.is_lost, named))
        finally:
            self._begun = None

    def close(self) -> None:
        """Close the stage, if it is open."""
        stage, self._stage = self._stage, None
        if stage is not None:
            stage.close()

    def _is_stale(self, step: Step) -> bool:
        if step.epoch != self.epoch:
            return step.epoch < self.epoch
        return self._is_down and step.step != self.step

    def _run(self, step: Step) -> StepOutcome:
        assert self._stage is not None, "the stage is not open"
        if step.epoch > self.epoch:
            self.epoch, self.step, self._is_down = step.epoch, 0, False
            self._edit(self._stage, [Drop(seq) for seq in self._open])
        if self._is_down:
            self.step, self._is_down = self.step - 1, False
        if step.step != self.step + 1:
            raise StageLost(f"step {step.step} came where step {self.step + 1} was due")
        self.step = step.step
        begun = self._clock()
        self._edit(self._stage, step.edits)
        result = _compute(self._stage, step) if step.rows else StageResult()
        seconds = max(0.0, self._clock() - begun)
        self.num_steps += 1
        self.num_tokens += sum([len(row.tokens) for row in step.rows])
        return self._conclude(step, result, seconds)

    def _conclude(self, step: Step, result: StageResult, seconds: float) -> StepOutcome:
        assert self._stage is not None, "the stage is not open"
        head, number = (step.lease, step.epoch, step.step), self.place.stage
        if _is_last(self._stage.info):
            return StepOutcome(Result(*head, number, result.answers, result.free, seconds, result.tensors))
        onward = Step(*head, step.edits, step.rows, result.tensors)
        return StepOutcome(Result(*head, number, (), result.free, seconds), onward)

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


def _compute(stage: Stage, step: Step) -> StageResult:
    """Run the rows of a step, and check its inputs and outputs."""
    info = stage.info
    hidden = _fit(info, step)
    try:
        result = stage.step(StageBatch(step.rows, hidden, step.embeddings, step.step)).wait()
    except StageLost:
        raise
    except BackendFailed as error:
        raise BackendFailed(f"the model failed on this step: {error.message}", error.hint, error.sequences) from error
    except Exception as error:
        raise BackendFailed(f"the model failed on this step: {type(error).__name__}: {error}") from error
    _check_result(info, step, result)
    return result


def _fit(info: StageInfo, step: Step) -> tuple[Tensor, ...]:
    """Return the hidden states of a step in the dtypes the stage takes."""
    given = _describe(step.hidden)
    if [spec.width for spec in given] != [spec.width for spec in info.takes]:
        raise BackendFailed(f"a stage that takes {show_specs(info.takes)} was given {show_specs(given)}")
    if given == info.takes:
        return step.hidden
    if not {spec.dtype for spec in (*given, *info.takes)} <= FLOATS:
        raise BackendFailed(f"a stage that takes {show_specs(info.takes)} was given {show_specs(given)}")
    from parallax_core.node.dtypes import convert

    return tuple(convert(tensor, spec.dtype) for tensor, spec in zip(step.hidden, info.takes, strict=True))


def _check_result(info: StageInfo, step: Step, result: StageResult) -> None:
    """Check the outputs of a step.

    Raises:
        StageLost: if they do not match the step: the stage's state has advanced all the same.
    """
    if not _is_last(info):
        if (given := _describe(result.tensors)) != info.gives:
            raise StageLost(f"a stage that gives {show_specs(info.gives)} gave {show_specs(given)}")
        return
    num_outputs = sum([len(row.outputs) for row in step.rows])
    if len(result.answers) != num_outputs:
        raise StageLost(f"the stage gave {len(result.answers)} answers where {num_outputs} were asked for")


def _is_last(info: StageInfo) -> bool:
    return info.layers.stop == info.num_layers


def _describe(tensors: Sequence[Tensor]) -> tuple[TensorSpec, ...]:
    return tuple(TensorSpec(tensor.shape[-1] if tensor.shape else 0, tensor.dtype) for tensor in tensors)

"""A stage as its head's messages reach it."""

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
    """Where in a pipeline a stage stands."""

    lease: LeaseId
    """What its head calls its claim on the stage."""
    stage: int
    """Which stage of the pipeline it is, counted from 0."""


@dataclass(frozen=True, slots=True)
class StepOutcome:
    """What a step leads to."""

    report: Result | Failure
    """What the head is to be told."""
    onward: Step | None = None
    """What the next stage is to do, if there is one and the step did not fail."""


class StageRuntime:
    """Runs what a head asks for on a stage. Belongs to the stage's thread; others may read its counts."""

    def __init__(
        self, open_stage: Callable[[], Stage], place: StageKey, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._open_stage = open_stage
        self.place = place
        self._clock = clock
        self._stage: Stage | None = None
        self._open: dict[SeqId, None] = {}
        self._is_down = False
        """Whether a step of this epoch has failed: nothing that comes after it makes sense."""
        self.fault = ""
        """Why the stage has lost what it holds, so that it is of no more use; empty: it has not."""
        self.epoch = -1
        """The newest epoch whose steps have come; -1: none has."""
        self.step = 0
        """The last step of the epoch that was run or has failed; 0: none."""
        self.num_steps = 0
        """Steps run since the stage opened."""
        self.num_tokens = 0
        """Tokens computed since then."""
        self._begun: tuple[int, float] | None = None
        """The step that is being computed, and when that began."""

    @property
    def is_lost(self) -> bool:
        """Whether nothing more is known of what the stage holds."""
        return bool(self.fault)

    @property
    def num_open(self) -> int:
        """Sequences open."""
        return len(self._open)

    @property
    def running(self) -> tuple[int, float]:
        """The step that is being computed, and for how many seconds; 0 and 0: none.

        It begins once there is nothing to wait for, such as grammar masks or the turn of another head: whoever judges
        by this whether the stage hangs has to know of computing only.
        """
        begun = self._begun
        return (begun[0], max(0.0, self._clock() - begun[1])) if begun is not None else (0, 0.0)

    def open(self) -> StageInfo:
        """Open the stage. What the backend raises is not caught here."""
        self._stage = self._open_stage()
        return self._stage.info

    def reset(self) -> None:
        """Forget all sequences and epochs, for a head that begins anew; a stage that cannot is lost."""
        self.epoch, self.step, self._is_down = -1, 0, False
        if self._stage is not None:
            try:
                self._edit(self._stage, [Drop(seq) for seq in self._open])
            except StageLost as error:
                logger.exception("stage cannot forget stage=%d", self.place.stage)
                self.fault = error.message

    def reopen(self) -> StageInfo:
        """Have the stage be as when it was opened, by forgetting all there is if that can be, or else by opening it."""
        if self._stage is not None and not self.is_lost:
            self.reset()
        if self._stage is None or self.is_lost:
            with contextlib.suppress(Exception):  # it is lost already
                self.close()
            self._open.clear()
            self.fault = ""
            return self.open()
        return self._stage.info

    def run(self, step: Step) -> StepOutcome | None:
        """Apply the edits of ``step``, then run its rows; return None for a step that is to be discarded.

        A new epoch begins with nothing: what is open is dropped. Discarded are steps of an older epoch and of another
        lease, and those after one that failed, until another comes with its number: from a head that knows that the
        stage is as it was before. Nothing is raised: whatever goes wrong is a `Failure`.
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
    """Run the rows of a step, and check what goes in and what comes out."""
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
    """A stage that answers something else than it was asked has gone on all the same: it is lost."""
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

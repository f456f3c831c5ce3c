"""A stage as its head's messages reach it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from parallax_core.base.errors import BackendFailed, StageLost
from parallax_core.base.ids import LeaseId, SeqId
from parallax_core.contracts.stage import Drop, Edit, Fork, Open, Stage, StageBatch, StageInfo, StageResult
from parallax_core.contracts.tensor import FLOATS, Tensor, TensorSpec
from parallax_core.node.chain import show_specs
from parallax_core.wire.messages import Failure, Result, Step

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Place:
    """Where in a pipeline a stage stands."""

    lease: LeaseId
    """What its head calls its claim on the stage."""
    stage: int
    """Which stage of the pipeline it is, counted from 0."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a step leads to."""

    report: Result | Failure
    """What the head is to be told."""
    onward: Step | None = None
    """What the next stage is to do, if there is one and the step did not fail."""


class StageHost:
    """Runs what a head asks for on a stage. Belongs to the stage's thread; others may read its counts."""

    def __init__(
        self, open_stage: Callable[[], Stage], place: Place, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._open_stage = open_stage
        self.place = place
        self._clock = clock
        self._stage: Stage | None = None
        self._open: dict[SeqId, None] = {}
        self._is_down = False
        """Whether a step of this epoch has failed: nothing that comes after it makes sense."""
        self.is_lost = False
        """Whether the stage has lost what it holds, so that it is of no more use."""
        self.epoch = -1
        """The newest epoch whose steps have come; -1: none has."""
        self.step = 0
        """The last step of the epoch that was run or has failed; 0: none."""
        self.num_steps = 0
        """Steps run since the stage opened."""
        self.num_tokens = 0
        """Tokens computed since then."""

    @property
    def num_open(self) -> int:
        """Sequences open."""
        return len(self._open)

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
            except StageLost:
                logger.exception("stage cannot forget stage=%d", self.place.stage)
                self.is_lost = True

    def run(self, step: Step) -> Outcome | None:
        """Apply the edits of ``step``, then run its rows; return None for a step that is to be discarded.

        A new epoch begins with nothing: what is open is dropped. Discarded are steps of an older epoch and of another
        lease, and those after one that failed. Nothing is raised: whatever goes wrong is a `Failure`.
        """
        is_stale = step.epoch < self.epoch or (step.epoch == self.epoch and self._is_down)
        if is_stale or self.is_lost or step.lease != self.place.lease:
            return None
        try:
            return self._run(step)
        except (BackendFailed, StageLost) as error:
            logger.exception("step failed stage=%d epoch=%d step=%d", self.place.stage, step.epoch, step.step)
            self._is_down, self.is_lost = True, isinstance(error, StageLost)
            stage, message = self.place.stage, error.message
            return Outcome(Failure(step.lease, step.epoch, step.step, stage, message, self.is_lost))

    def close(self) -> None:
        """Close the stage, if it is open."""
        stage, self._stage = self._stage, None
        if stage is not None:
            stage.close()

    def _run(self, step: Step) -> Outcome:
        assert self._stage is not None, "the stage is not open"
        if step.epoch > self.epoch:
            self.epoch, self.step, self._is_down = step.epoch, 0, False
            self._edit(self._stage, [Drop(seq) for seq in self._open])
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

    def _conclude(self, step: Step, result: StageResult, seconds: float) -> Outcome:
        assert self._stage is not None, "the stage is not open"
        head, number = (step.lease, step.epoch, step.step), self.place.stage
        if _is_last(self._stage.info):
            return Outcome(Result(*head, number, result.answers, result.free, seconds, result.tensors))
        onward = Step(*head, step.edits, step.rows, result.tensors)
        return Outcome(Result(*head, number, (), result.free, seconds), onward)

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
    except Exception as error:
        message = f"the model failed on this step: {type(error).__name__}: {error}"
        raise BackendFailed(message) from error
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
    from parallax_core.node.convert import convert

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

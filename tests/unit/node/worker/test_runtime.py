from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import count

import msgspec
import pytest

from parallax_core.api import (
    BackendFailed,
    Draw,
    Drawn,
    Drop,
    Edit,
    Epoch,
    LayerRange,
    Open,
    Row,
    SeqId,
    SequenceSpec,
    Stage,
    StageBatch,
    StageInfo,
    StageLost,
    StageOutput,
    StageResult,
    Tensor,
    TensorSpec,
)
from parallax_core.node.worker.runtime import StageRuntime, StepOutcome
from parallax_core.testing.fault import Fault, FaultStage
from parallax_core.testing.sleep import SleepStage, describe_sleeper
from parallax_core.testing.toy import GREEDY, Toy, ToyStage
from parallax_core.wire.messages import Failure, Result, Step
from tests.unit.node.worker.recorder import Recorder

TOY = Toy(("full", "full", "full"))
SEQ = SeqId(1)
OPEN = Open(SEQ, SequenceSpec(prompt_length=2, sampling=GREEDY))
ROW = Row(SEQ, 0, (3, 4), (Draw(1),))
HIDDEN = Tensor("int64", (2, 1), bytes(16))


def host_of(stage: Stage) -> StageRuntime:
    ticks: Iterator[int] = count()
    host = StageRuntime(lambda: stage, 1, lambda: float(next(ticks)))
    host.open()
    return host


def make_step(number: int, edits: Sequence[Edit] = (), rows: Sequence[Row] = (), epoch: int = 0) -> Step:
    return Step(Epoch(epoch), number, tuple(edits), tuple(rows))


def run(host: StageRuntime, step: Step) -> StepOutcome | None:
    host.submit(step)
    return host.finish()


def result_of(host: StageRuntime, step: Step) -> Result:
    outcome = run(host, step)
    assert outcome is not None
    assert isinstance(outcome.report, Result), outcome.report
    return outcome.report


def failure_of(host: StageRuntime, step: Step) -> Failure:
    outcome = run(host, step)
    assert outcome is not None
    assert isinstance(outcome.report, Failure)
    assert outcome.onward is None
    return outcome.report


def test_last_stage_answers_with_free_pages_and_seconds() -> None:
    stage = TOY.open()
    result = result_of(host_of(stage), make_step(1, [OPEN], [ROW]))
    assert result.answers == (Drawn(tuple(TOY.continuation([3, 4], 1))),)
    assert (result.step, result.stage, result.free, result.seconds) == (1, 1, stage.free, 1.0)


def test_other_stage_hands_on_edits_rows_and_hidden_states() -> None:
    outcome = run(host_of(TOY.open(LayerRange(0, 1))), make_step(1, [OPEN], [ROW]))
    assert outcome is not None
    assert outcome.onward is not None
    assert (outcome.onward.edits, outcome.onward.rows) == ((OPEN,), (ROW,))
    assert [(tensor.dtype, tensor.shape) for tensor in outcome.onward.hidden] == [("int64", (2, 1))]
    assert isinstance(outcome.report, Result)
    assert (outcome.report.answers, outcome.report.tensors) == ((), ())


def test_only_the_last_stage_waits_for_masks() -> None:
    step = make_step(1, [OPEN], [msgspec.structs.replace(ROW, outputs=(Draw(1, masked=True),))])
    first, whole = run(host_of(TOY.open(LayerRange(0, 1))), step), failure_of(host_of(TOY.open()), step)
    assert first is not None
    assert isinstance(first.report, Result)
    assert "the masks of the step have not come" in whole.message


def test_embeddings_are_not_handed_on() -> None:
    class Embedded(ToyStage):
        def step(self, batch: StageBatch) -> object:  # type: ignore[override]
            seen.append(batch.embeddings)
            return super().step(StageBatch(batch.rows, batch.hidden, (), batch.step))

    seen: list[tuple[Tensor, ...]] = []
    given = (Tensor("float32", (1, 1), bytes(4)),)
    host = host_of(Embedded(TOY, LayerRange(0, 1)))  # type: ignore[arg-type]
    outcome = run(host, Step(Epoch(0), 1, (OPEN,), (ROW,), (), given))
    assert outcome is not None
    assert outcome.onward is not None
    assert (seen, outcome.onward.embeddings) == ([given], ())


def test_step_that_only_edits_travels_too() -> None:
    stage = TOY.open(LayerRange(0, 1))
    outcome = run(host_of(stage), make_step(1, [OPEN]))
    assert outcome is not None
    assert outcome.onward == make_step(1, [OPEN])
    assert SEQ in stage.tokens


@pytest.mark.parametrize("number", [1, 3])
def test_gap_or_repetition_of_steps_means_the_stage_is_lost(number: int) -> None:
    host = host_of(TOY.open())
    result_of(host, make_step(1, [OPEN]))
    failure = failure_of(host, make_step(number))
    assert failure.lost
    assert failure.message == f"step {number} came where step 2 was due"
    assert run(host, make_step(2)) is None
    assert run(host, make_step(1, epoch=1)) is None


def test_first_step_of_an_epoch_is_1() -> None:
    assert failure_of(host_of(TOY.open()), make_step(2)).lost


def test_new_epoch_begins_with_nothing() -> None:
    stage = TOY.open()
    host = host_of(stage)
    for number in range(1, 4):
        seq = SeqId(number)
        result_of(host, make_step(number, [Open(seq, OPEN.spec)], [Row(seq, 0, (3, 4))]))
    result_of(host, make_step(4, [Drop(SeqId(2))]))
    assert host.num_open == 2
    result = result_of(host, make_step(1, [Open(SeqId(9), OPEN.spec)], [Row(SeqId(9), 0, (5,))], epoch=3))
    assert (set(stage.tokens), host.num_open, host.step) == ({9}, 1, 1)
    assert result.free == (stage.info.pools[0].num_pages - 1,)


def test_older_epochs_are_discarded() -> None:
    host = host_of(TOY.open())
    result_of(host, make_step(1, [OPEN], epoch=2))
    assert run(host, make_step(2, epoch=1)) is None
    result_of(host, make_step(2, rows=[ROW], epoch=2))


def test_steps_after_a_failed_one_are_discarded_until_the_next_epoch() -> None:
    host = host_of(FaultStage(TOY.open(), Fault("step", at=0)))
    failure = failure_of(host, make_step(1, [OPEN], [ROW]))
    assert not failure.lost
    assert failure.message == "the model failed on this step: the step failed on purpose"
    assert run(host, make_step(2, rows=[ROW])) is None
    assert result_of(host, make_step(1, [OPEN], [ROW], epoch=1)).answers


@pytest.mark.parametrize("error", [RuntimeError("gone"), BackendFailed("gone")])
def test_stage_is_lost_when_an_edit_fails(error: Exception) -> None:
    host = host_of(FaultStage(TOY.open(), Fault("edit", at=1, error=error)))
    failure = failure_of(host, make_step(1, [OPEN]))
    assert failure.lost
    assert "an edit failed" in failure.message
    assert run(host, make_step(1, epoch=1)) is None


def test_stage_that_says_it_is_lost_is_believed() -> None:
    host = host_of(FaultStage(TOY.open(), Fault("die", at=0)))
    assert failure_of(host, make_step(1, [OPEN], [ROW])).lost


@pytest.mark.parametrize(
    "hidden",
    [(), (HIDDEN, HIDDEN), (Tensor("int64", (2, 2), bytes(32)),), (Tensor("float32", (2, 1), bytes(8)),)],
    ids=["none", "two", "width", "dtype"],
)
def test_hidden_states_that_do_not_fit_fail_the_step(hidden: tuple[Tensor, ...]) -> None:
    stage = TOY.open(LayerRange(1, 3))
    failure = failure_of(host_of(stage), Step(Epoch(0), 1, (OPEN,), (ROW,), hidden))
    assert not failure.lost
    assert "was given" in failure.message
    assert stage.tokens == {SEQ: 0}


@pytest.mark.parametrize("layers", [LayerRange(0, 1), LayerRange(0, 3)], ids=["first", "whole"])
def test_stage_that_gives_something_else_is_lost(layers: LayerRange) -> None:
    class Ready:
        def wait(self) -> StageResult:
            return StageResult()

    class Silent(ToyStage):
        def step(self, batch: StageBatch) -> Ready:  # type: ignore[override]
            return Ready()

    failure = failure_of(host_of(Silent(TOY, layers)), make_step(1, [OPEN], [ROW]))
    assert failure.lost


def take_ahead(*faults: Fault) -> tuple[StageRuntime, ToyStage, Recorder]:
    """Return a runtime whose stage takes one step ahead; it has the toy below the recorder, too."""
    toy = TOY.open(steps_ahead=1)
    stage = Recorder(FaultStage(toy, *faults))
    return host_of(stage), toy, stage


def decode_step(number: int, epoch: int = 0) -> Step:
    """Return the step that appends one token to the sequence; the first opens it."""
    row = Row(SEQ, number - 1, (3,), (Draw(0),))
    return make_step(number, [OPEN] if number == 1 else [], [row], epoch)


def test_step_is_submitted_before_the_one_before_it_is_waited_for() -> None:
    host, _, stage = take_ahead()
    outcomes = []
    host.submit(decode_step(1))
    for number in (2, 3, 4):
        host.submit(decode_step(number))
        outcomes.append(host.finish())
    outcomes.append(host.finish())
    assert stage.calls == ["step 1", "step 2", "wait 1", "step 3", "wait 2", "step 4", "wait 3", "wait 4"]
    reports = [outcome.report for outcome in outcomes if outcome is not None]
    plain = host_of(TOY.open())
    wanted = [result_of(plain, decode_step(number)) for number in (1, 2, 3, 4)]
    assert [replace_seconds(report) for report in reports] == [replace_seconds(report) for report in wanted]


def replace_seconds(report: Result | Failure) -> Result | Failure:
    return msgspec.structs.replace(report, seconds=0.0) if isinstance(report, Result) else report


def test_steps_after_one_that_fails_as_it_is_waited_for_are_discarded_until_a_new_epoch() -> None:
    host, toy, _ = take_ahead(Fault("wait", at=1))
    for number in (1, 2):
        host.submit(decode_step(number))
    assert host.finish() is not None
    host.submit(decode_step(3))
    failed, later = host.finish(), host.finish()
    assert failed is not None
    assert isinstance(failed.report, Failure)
    assert (failed.report.step, failed.report.lost, later, host.step) == (2, False, None, 2)
    assert run(host, decode_step(4)) is None
    result = result_of(host, decode_step(1, epoch=1))
    assert (toy.tokens, result.free) == ({SEQ: 1}, (7,))


def test_failed_step_cannot_be_tried_again_once_later_ones_were_submitted() -> None:
    host, _, _ = take_ahead(Fault("wait", at=0))
    host.submit(decode_step(1))
    host.submit(decode_step(2))
    host.finish()
    host.finish()
    failure = failure_of(host, decode_step(1))
    assert failure.lost
    assert failure.message == "step 1 came again after later steps, without a new epoch"


def test_step_that_fails_as_it_is_submitted_leaves_the_one_before_it_alone() -> None:
    host, toy, stage = take_ahead(Fault("step", at=1))
    for number in (1, 2, 3):
        host.submit(decode_step(number))
    first, second, third = (host.finish() for _ in range(3))
    assert first is not None
    assert second is not None
    assert isinstance(first.report, Result)
    assert isinstance(second.report, Failure)
    assert third is None
    assert stage.calls == ["step 1", "step 2", "wait 1"]
    assert result_of(host, decode_step(2)).answers
    assert toy.tokens == {SEQ: 2}


def test_loss_that_shows_in_a_later_step_is_reported() -> None:
    host, _, _ = take_ahead(Fault("wait", at=0), Fault("wait", at=1, error=StageLost("it burns")))
    host.submit(decode_step(1))
    host.submit(decode_step(2))
    outcomes = [host.finish(), host.finish()]
    failures = [outcome.report for outcome in outcomes if outcome is not None]
    assert [(failure.step, failure.lost) for failure in failures if isinstance(failure, Failure)] == [
        (1, False),
        (2, True),
    ]
    assert run(host, decode_step(1, epoch=1)) is None


def test_new_epoch_waits_for_the_steps_of_the_old_one_and_their_outcomes_keep_their_order() -> None:
    host, toy, stage = take_ahead()
    host.submit(decode_step(1))
    host.submit(decode_step(1, epoch=1))
    assert stage.calls == ["step 1", "wait 1", "step 1"]
    reports = [outcome.report for outcome in (host.finish(), host.finish()) if outcome is not None]
    assert [(report.epoch, report.step) for report in reports] == [(0, 1), (1, 1)]
    assert toy.tokens == {SEQ: 1}


def test_time_of_a_step_begins_when_the_one_before_it_is_finished() -> None:
    ticks = iter([0.0, 1.0, 10.0, 11.0, 20.0, 25.0, 30.0])
    host = StageRuntime(lambda: TOY.open(steps_ahead=1), 1, lambda: next(ticks))
    host.open()
    host.submit(decode_step(1))
    host.submit(decode_step(2))
    first = host.finish()
    assert host.running == (2, 5.0)
    second = host.finish()
    assert first is not None
    assert second is not None
    reports = first.report, second.report
    assert [report.seconds for report in reports if isinstance(report, Result)] == [19.0, 10.0]
    assert host.running == (0, 0.0)


def test_reset_forgets_the_steps_that_were_submitted() -> None:
    host, toy, _ = take_ahead()
    host.submit(decode_step(1))
    host.submit(decode_step(2))
    host.reset()
    assert (toy.tokens, host.num_submitted, host.running) == ({}, 0, (0, 0.0))
    assert result_of(host, decode_step(1)).answers


def test_host_closes_what_it_opened_once() -> None:
    stage = TOY.open()
    host = host_of(stage)
    host.close()
    host.close()
    assert stage.closed
    StageRuntime(lambda: stage, 0).close()


def test_hidden_states_of_another_dtype_are_converted() -> None:
    info = describe_sleeper(LayerRange(1, 8))
    stage = Listener(replace(info, takes=(TensorSpec(2, "float32"),)))
    given = Tensor("bfloat16", (2, 2), struct.pack("<4H", 0x3F80, 0x4000, 0xC040, 0))
    result_of(host_of(stage), Step(Epoch(0), 1, (OPEN,), (ROW,), (given,)))
    assert stage.heard == [Tensor("float32", (2, 2), struct.pack("<4f", 1, 2, -3, 0))]


class Listener(SleepStage):
    """A stage that keeps what it was given."""

    def __init__(self, info: StageInfo) -> None:
        super().__init__(info, lambda _: 0.0)
        self.heard: list[Tensor] = []

    def step(self, batch: StageBatch) -> StageOutput:
        self.heard.extend(batch.hidden)
        return super().step(batch)

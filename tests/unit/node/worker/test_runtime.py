from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import count

import pytest

from parallax_core.api import (
    BackendFailed,
    Draw,
    Drawn,
    Drop,
    Edit,
    Epoch,
    LayerRange,
    LeaseId,
    Open,
    Outcome,
    Row,
    SeqId,
    SequenceSpec,
    Stage,
    StageBatch,
    StageInfo,
    StageResult,
    Tensor,
    TensorSpec,
)
from parallax_core.node.worker.runtime import StageKey, StageRuntime
from parallax_core.testing.fault import Fault, FaultStage
from parallax_core.testing.sleep import SleepStage, describe_sleeper
from parallax_core.testing.toy import GREEDY, Toy, ToyStage
from parallax_core.wire.messages import Failure, Result, Step

TOY = Toy(("full", "full", "full"))
LEASE = LeaseId(7)
SEQ = SeqId(1)
OPEN = Open(SEQ, SequenceSpec(prompt_length=2, sampling=GREEDY))
ROW = Row(SEQ, 0, (3, 4), (Draw(1),))
HIDDEN = Tensor("int64", (2, 1), bytes(16))


def host_of(stage: Stage) -> StageRuntime:
    ticks: Iterator[int] = count()
    host = StageRuntime(lambda: stage, StageKey(LEASE, 1), lambda: float(next(ticks)))
    host.open()
    return host


def make_step(number: int, edits: Sequence[Edit] = (), rows: Sequence[Row] = (), epoch: int = 0) -> Step:
    return Step(LEASE, Epoch(epoch), number, tuple(edits), tuple(rows))


def result_of(host: StageRuntime, step: Step) -> Result:
    outcome = host.run(step)
    assert outcome is not None
    assert isinstance(outcome.report, Result), outcome.report
    return outcome.report


def failure_of(host: StageRuntime, step: Step) -> Failure:
    outcome = host.run(step)
    assert outcome is not None
    assert isinstance(outcome.report, Failure)
    assert outcome.onward is None
    return outcome.report


def test_last_stage_answers_with_free_pages_and_seconds() -> None:
    stage = TOY.open()
    result = result_of(host_of(stage), make_step(1, [OPEN], [ROW]))
    assert result.answers == (Drawn(tuple(TOY.continuation([3, 4], 1))),)
    assert (result.lease, result.step, result.stage, result.free, result.seconds) == (LEASE, 1, 1, stage.free, 1.0)


def test_other_stage_hands_on_edits_rows_and_hidden_states() -> None:
    outcome = host_of(TOY.open(LayerRange(0, 1))).run(make_step(1, [OPEN], [ROW]))
    assert outcome is not None
    assert outcome.onward is not None
    assert (outcome.onward.edits, outcome.onward.rows) == ((OPEN,), (ROW,))
    assert [(tensor.dtype, tensor.shape) for tensor in outcome.onward.hidden] == [("int64", (2, 1))]
    assert isinstance(outcome.report, Result)
    assert (outcome.report.answers, outcome.report.tensors) == ((), ())


def test_embeddings_are_not_handed_on() -> None:
    class Embedded(ToyStage):
        def step(self, batch: StageBatch) -> object:  # type: ignore[override]
            seen.append(batch.embeddings)
            return super().step(StageBatch(batch.rows, batch.hidden, (), batch.step))

    seen: list[tuple[Tensor, ...]] = []
    given = (Tensor("float32", (1, 1), bytes(4)),)
    host = host_of(Embedded(TOY, LayerRange(0, 1)))  # type: ignore[arg-type]
    outcome = host.run(Step(LEASE, Epoch(0), 1, (OPEN,), (ROW,), (), given))
    assert outcome is not None
    assert outcome.onward is not None
    assert (seen, outcome.onward.embeddings) == ([given], ())


def test_step_that_only_edits_travels_too() -> None:
    stage = TOY.open(LayerRange(0, 1))
    outcome = host_of(stage).run(make_step(1, [OPEN]))
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
    assert host.run(make_step(2)) is None
    assert host.run(make_step(1, epoch=1)) is None


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


def test_older_epochs_and_other_leases_are_discarded() -> None:
    host = host_of(TOY.open())
    result_of(host, make_step(1, [OPEN], epoch=2))
    assert host.run(make_step(2, epoch=1)) is None
    assert host.run(Step(LeaseId(8), Epoch(5), 1)) is None
    result_of(host, make_step(2, rows=[ROW], epoch=2))


def test_steps_after_a_failed_one_are_discarded_until_the_next_epoch() -> None:
    host = host_of(FaultStage(TOY.open(), Fault("step", at=0)))
    failure = failure_of(host, make_step(1, [OPEN], [ROW]))
    assert not failure.lost
    assert failure.message == "the model failed on this step: the step failed on purpose"
    assert host.run(make_step(2, rows=[ROW])) is None
    assert result_of(host, make_step(1, [OPEN], [ROW], epoch=1)).answers


@pytest.mark.parametrize("error", [RuntimeError("gone"), BackendFailed("gone")])
def test_stage_is_lost_when_an_edit_fails(error: Exception) -> None:
    host = host_of(FaultStage(TOY.open(), Fault("edit", at=1, error=error)))
    failure = failure_of(host, make_step(1, [OPEN]))
    assert failure.lost
    assert "an edit failed" in failure.message
    assert host.run(make_step(1, epoch=1)) is None


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
    failure = failure_of(host_of(stage), Step(LEASE, Epoch(0), 1, (OPEN,), (ROW,), hidden))
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


def test_host_closes_what_it_opened_once() -> None:
    stage = TOY.open()
    host = host_of(stage)
    host.close()
    host.close()
    assert stage.closed
    StageRuntime(lambda: stage, StageKey(LEASE, 0)).close()


def test_hidden_states_of_another_dtype_are_converted() -> None:
    info = describe_sleeper(LayerRange(1, 8))
    stage = Listener(replace(info, takes=(TensorSpec(2, "float32"),)))
    given = Tensor("bfloat16", (2, 2), struct.pack("<4H", 0x3F80, 0x4000, 0xC040, 0))
    result_of(host_of(stage), Step(LEASE, Epoch(0), 1, (OPEN,), (ROW,), (given,)))
    assert stage.heard == [Tensor("float32", (2, 2), struct.pack("<4f", 1, 2, -3, 0))]


class Listener(SleepStage):
    """A stage that keeps what it was given."""

    def __init__(self, info: StageInfo) -> None:
        super().__init__(info, lambda _: 0.0)
        self.heard: list[Tensor] = []

    def step(self, batch: StageBatch) -> Outcome:
        self.heard.extend(batch.hidden)
        return super().step(batch)

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from parallax_core.base.errors import BackendFailed, StageLost
from parallax_core.base.ids import Epoch, SeqId
from parallax_core.contracts.stage import Draw, Drawn, LayerRange, Row, StageBatch, StageInfo, StageResult
from parallax_core.contracts.tensor import ITEM_BYTES, Tensor, TensorSpec
from parallax_core.node.worker.compute import begin_rows, finish_rows, is_last
from parallax_core.testing.toy import Toy
from parallax_core.wire.messages import Step

TOY = Toy(("full",) * 3)
MIDDLE = replace(TOY.open(LayerRange(1, 2)).info, takes=(TensorSpec(4, "float32"),), gives=(TensorSpec(4, "float32"),))
LAST = replace(TOY.open(LayerRange(1, 3)).info, takes=MIDDLE.takes, gives=())
ROWS = (Row(SeqId(1), 0, (1, 2), (Draw(0), Draw(1))), Row(SeqId(2), 0, (3,)))


class GivenStage:
    """Notes the batch of a step, and gives a prepared result or raises it, at once or when that is waited for."""

    def __init__(self, info: StageInfo, result: StageResult | Exception, *, raises_late: bool = False) -> None:
        self.info = info
        self._result, self._raises_late = result, raises_late
        self.batch: StageBatch | None = None

    def step(self, batch: StageBatch) -> GivenStage:
        self.batch = batch
        return self if self._raises_late else self.check()

    def wait(self) -> StageResult:
        self.check()
        assert isinstance(self._result, StageResult)
        return self._result

    def check(self) -> GivenStage:
        if isinstance(self._result, Exception):
            raise self._result
        return self


def tensor(dtype: str = "float32", shape: tuple[int, ...] = (3, 4)) -> Tensor:
    size = ITEM_BYTES[dtype]
    for each in shape:
        size *= each
    return Tensor(dtype, shape, bytes(size))


def run(stage: Any, *hidden: Tensor) -> StageResult:
    step = Step(Epoch(1), 5, rows=ROWS, hidden=hidden)
    return finish_rows(stage.info, step, begin_rows(stage, step))


def test_rows_are_run_with_their_hidden_states_and_the_number_of_the_step() -> None:
    result = StageResult(tensors=(tensor(),))
    stage = GivenStage(MIDDLE, result)
    assert run(stage, tensor()) is result
    assert stage.batch == StageBatch(ROWS, (tensor(),), (), 5, None)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_hidden_states_are_converted_to_what_the_stage_takes(dtype: str) -> None:
    stage = GivenStage(MIDDLE, StageResult(tensors=(tensor(),)))
    run(stage, tensor(dtype))
    assert stage.batch is not None
    assert stage.batch.hidden == (tensor(),)


@pytest.mark.parametrize(
    ("hidden", "given"),
    [
        ((), "nothing"),
        ((tensor(shape=(3, 5)),), "float32 of width 5"),
        ((tensor(shape=(3, 2, 4)),), "float32 of width 2 x 4"),
        ((tensor(), tensor()), r"float32 of width 4 \+ float32 of width 4"),
        ((tensor("int32"),), "int32 of width 4"),
    ],
)
def test_hidden_states_that_do_not_fit_are_refused_before_the_step(hidden: tuple[Tensor, ...], given: str) -> None:
    stage = GivenStage(MIDDLE, StageResult())
    with pytest.raises(BackendFailed, match=f"takes float32 of width 4 was given {given}$"):
        run(stage, *hidden)
    assert stage.batch is None


def test_tensor_that_must_be_exact_is_not_converted() -> None:
    exact = replace(MIDDLE, takes=(TensorSpec(4, "float32", is_exact=True),))
    with pytest.raises(BackendFailed, match="was given float16 of width 4 exactly"):
        run(GivenStage(exact, StageResult()), tensor("float16"))
    run(GivenStage(exact, StageResult(tensors=(tensor(),))), tensor())


@pytest.mark.parametrize(
    "tensors", [(), (tensor("float16"),), (tensor(shape=(3, 5)),), (tensor(), tensor()), (tensor(shape=(3, 1, 4)),)]
)
def test_stage_that_gives_other_tensors_than_it_said_is_lost(tensors: tuple[Tensor, ...]) -> None:
    with pytest.raises(StageLost, match="a stage that gives float32 of width 4 gave "):
        run(GivenStage(MIDDLE, StageResult(tensors=tensors)), tensor())


@pytest.mark.parametrize("num_answers", [0, 1, 3])
def test_last_stage_answers_every_output_or_is_lost(num_answers: int) -> None:
    answers = (Drawn((1,)),)
    assert run(GivenStage(LAST, StageResult(answers * 2)), tensor()).answers == answers * 2
    with pytest.raises(StageLost, match=f"the stage gave {num_answers} answers where 2 were asked for"):
        run(GivenStage(LAST, StageResult(answers * num_answers)), tensor())


def test_last_stage_is_the_one_with_the_last_layer() -> None:
    assert (is_last(MIDDLE), is_last(LAST)) == (False, True)


@pytest.mark.parametrize("raises_late", [False, True])
def test_failure_of_the_model_is_told_as_one(raises_late: bool) -> None:
    for error, said in (
        (ZeroDivisionError("why"), "the model failed on this step: ZeroDivisionError: why"),
        (BackendFailed("no memory", "free some", (SeqId(2),)), "the model failed on this step: no memory"),
    ):
        with pytest.raises(BackendFailed, match=said) as caught:
            run(GivenStage(MIDDLE, error, raises_late=raises_late), tensor())
        if isinstance(error, BackendFailed):
            assert (caught.value.hint, caught.value.sequences) == ("free some", (SeqId(2),))
    with pytest.raises(StageLost, match=r"^gone$"):
        run(GivenStage(MIDDLE, StageLost("gone"), raises_late=raises_late), tensor())

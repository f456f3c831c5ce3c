"""What the kit does not ask of every stage; `docs/examples/backend-numpy` holds a stage of rows to the kit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from parallax_core.api import (
    BackendFailed,
    Draw,
    Drawn,
    LayerRange,
    Open,
    PoolInfo,
    Row,
    RowStage,
    Sampling,
    SeqId,
    SequenceSpec,
    StageBatch,
    StageInfo,
    Tensor,
    TensorSpec,
)

VOCAB, A, B = 10, SeqId(1), SeqId(2)
POOL = PoolInfo(kind="full", page_size=2, num_pages=8)
HOP = TensorSpec(1, "uint8")
INFO = StageInfo(
    layers=LayerRange(0, 1),
    num_layers=1,
    vocab_size=VOCAB,
    context_length=16,
    max_batch_tokens=8,
    pools=(POOL,),
    device="none",
    dtype="float32",
    weight_bytes=0,
    weights_version="1",
)


class Adder:
    """The state of a token is the sum of all up to it and of what came before the layers; it is drawn next."""

    def __init__(self) -> None:
        self.slots = [0] * (POOL.num_pages * POOL.page_size)
        self.seen: list[list[int]] = []

    def run(self, row: Row, slots: Sequence[int], before: Tensor | None) -> Tensor:
        self.seen.append(list(slots))
        given = bytes(before.data) if before else bytes(len(row.tokens))
        for slot, token, more in zip(slots[row.start :], row.tokens, given, strict=True):
            self.slots[slot] = token + more
        sums = [sum(self.slots[slot] for slot in slots[: row.start + n + 1]) for n in range(len(row.tokens))]
        return Tensor("uint8", (len(sums), 1), bytes(sums))

    def score(self, states: Tensor, offset: int) -> Sequence[float]:
        return [float(token == bytes(states.data)[offset] % VOCAB) for token in range(VOCAB)]

    def copy(self, src: int, dst: int, num: int) -> None:
        self.slots[dst : dst + num] = self.slots[src : src + num]


def open_stage(model: Adder, info: StageInfo = INFO) -> RowStage:
    stage = RowStage(info, model)
    spec = SequenceSpec(prompt_length=1, sampling=Sampling(temperature=0))
    stage.edit([Open(A, spec), Open(B, spec)])
    return stage


def test_rows_are_run_each_with_the_slots_of_its_sequence() -> None:
    model = Adder()
    stage = open_stage(model)
    stage.step(StageBatch((Row(A, 0, (1, 2, 3)), Row(B, 0, (5,)))))
    result = stage.step(StageBatch((Row(B, 1, (1,), (Draw(0),)), Row(A, 3, (2,), (Draw(0),))))).wait()
    assert result.answers == (Drawn((6,)), Drawn((8,)))
    assert [len(slots) for slots in model.seen] == [3, 1, 2, 4]
    assert len({slot for slots in model.seen[2:] for slot in slots}) == 6
    assert result.free == (5,)


def test_hidden_states_are_cut_for_the_rows_and_joined_after_them() -> None:
    info = replace(INFO, layers=LayerRange(1, 2), num_layers=3, takes=(HOP,), gives=(HOP,))
    stage = open_stage(Adder(), info)
    batch = StageBatch((Row(A, 0, (1, 1)), Row(B, 0, (2,))), (Tensor("uint8", (3, 1), bytes([10, 20, 30])),))
    result = stage.step(batch).wait()
    assert [(tensor.shape, bytes(tensor.data)) for tensor in result.tensors] == [((3, 1), bytes([11, 32, 32]))]
    assert result.answers == ()


def test_computation_that_fails_closes_the_stage() -> None:
    model = Adder()
    stage = open_stage(model)
    model.slots.clear()
    batch = StageBatch((Row(A, 0, (1,)),))
    with pytest.raises(BackendFailed, match="IndexError") as caught:
        stage.step(batch)
    assert caught.value.hint
    with pytest.raises(BackendFailed, match="closed"):
        stage.step(batch)


@pytest.mark.parametrize(
    "info",
    [
        replace(INFO, pools=(replace(POOL, kind="state"),)),
        replace(INFO, pools=(POOL, POOL)),
        replace(INFO, capabilities=frozenset({"hidden"})),
    ],
)
def test_stage_that_needs_more_is_refused(info: StageInfo) -> None:
    with pytest.raises(ValueError, match="one full pool"):
        RowStage(info, Adder())

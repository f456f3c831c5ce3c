from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from parallax_core.base.errors import OutOfPages, Unsupported
from parallax_core.base.ids import SeqId
from parallax_core.contracts.sample import Sampling
from parallax_core.contracts.stage import (
    Draw,
    Drop,
    Edit,
    Fork,
    Hidden,
    LayerRange,
    Open,
    PoolInfo,
    Row,
    Score,
    SequenceSpec,
    Span,
    StageBatch,
    StageInfo,
    Truncate,
)
from parallax_core.contracts.tensor import ITEM_BYTES, Tensor, TensorSpec
from parallax_core.pages.check import check_batch, check_edit, check_room
from parallax_core.pages.pool import PagePool

A, B, C = SeqId(1), SeqId(2), SeqId(3)
LENGTHS = {A: 3, B: 9}
WINDOW = PoolInfo(kind="window", page_size=1, num_pages=16, window=2, rewind=1)
FULL = PoolInfo(kind="full", page_size=4, num_pages=4)
INFO = StageInfo(
    layers=LayerRange(0, 2),
    num_layers=2,
    vocab_size=50,
    context_length=10,
    max_batch_tokens=6,
    pools=(FULL,),
    device="none",
    dtype="float32",
    weight_bytes=0,
    weights_version="1",
)
ABLE = replace(INFO, capabilities=frozenset({"positions", "embeddings", "hidden", "hidden_sums", "logprobs", "masks"}))
SPEC = SequenceSpec(prompt_length=1, sampling=Sampling())
ADAPTED = SequenceSpec(prompt_length=1, sampling=Sampling(), adapter="x")
DRAW = (Draw(0),)
HIDDEN = TensorSpec(width=2, dtype="float32")


class Masks:
    """A source of masks, which nothing waits for."""

    def wait(self) -> dict[int, Tensor]:
        return {}


def check(*rows: Row, info: StageInfo = ABLE, **given: Any) -> None:
    check_batch(StageBatch(rows, **given), LENGTHS, info)


def make_hidden(num_tokens: int, dtype: str = "float32") -> Tensor:
    return Tensor(dtype, (num_tokens, 2), bytes(num_tokens * 2 * ITEM_BYTES[dtype]))


@pytest.mark.parametrize(
    "rows",
    [
        (),
        (Row(A, 3, (1,), DRAW), Row(B, 9, (0,), DRAW)),
        (Row(A, 3, (0, 49, 1, 1, 1, 1)),),
        (Row(A, 3, (1, 1, 1, 1, 1, 1), (Draw(5),)),),
        (Row(A, 3, (1, 2), (Draw(0), Score(0, 49), Draw(1))),),
        (Row(A, 3, (1, 2), (Score(1, 0),)),),
        (Row(A, 3, (1, 2), (Hidden(0, 1), Hidden(1, 2))),),
        (Row(A, 3, (1, 2), positions=(0, 9)),),
    ],
)
def test_batch_up_to_every_limit_is_taken(rows: tuple[Row, ...]) -> None:
    check(*rows)


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        (Row(A, 2, (1,), DRAW), "it starts at 2, but the sequence's length is 3"),
        (Row(A, 4, (1,)), "it starts at 4, but the sequence's length is 3"),
        (Row(A, 3, ()), "it has no tokens"),
        (Row(B, 9, (1, 1)), "it ends beyond the context of 10 tokens"),
        (Row(A, 3, (1, -1)), "a token id is not in range(50)"),
        (Row(A, 3, (-1,), DRAW), "a token id is not in range(50)"),
        (Row(A, 3, (50,), DRAW), "a token id is not in range(50)"),
        (Row(A, 3, (50, 1)), "a token id is not in range(50)"),
        (Row(A, 3, (1, 2), positions=(3,)), "it has 1 positions for 2 tokens"),
        (Row(A, 3, (1, 2), positions=(-1, 3)), "its positions do not increase within range(10)"),
        (Row(A, 3, (1, 2), positions=(3, 10)), "its positions do not increase within range(10)"),
        (Row(A, 3, (1, 2), positions=(3, 3)), "its positions do not increase within range(10)"),
        (Row(A, 3, (1, 2), (Draw(1), Draw(0))), "the offsets of its outputs do not ascend within range(2)"),
        (Row(A, 3, (1, 2), (Draw(2),)), "the offsets of its outputs do not ascend within range(2)"),
        (Row(A, 3, (1, 2), (Draw(-1),)), "the offsets of its outputs do not ascend within range(2)"),
        (Row(A, 3, (1, 2), (Hidden(0, 2),)), "it sums the hidden states of tokens before its first"),
        (Row(A, 3, (1, 2), (Hidden(0, -1),)), "it sums the hidden states of tokens before its first"),
        (Row(A, 3, (1, 2), (Score(0, 50),)), "it scores a token id that is not in range(50)"),
        (Row(A, 3, (1, 2), (Score(0, -1),)), "it scores a token id that is not in range(50)"),
        (Row(A, 3, (1, 2), (Draw(0, 0),)), "it draws less than once"),
    ],
)
def test_fault_of_a_row_is_named(row: Row, problem: str) -> None:
    with pytest.raises(ValueError, match=re.escape(f"row of sequence {row.seq}: {problem}") + "$"):
        check(Row(B, 9, (1,), DRAW) if row.seq == A else Row(A, 3, (1,)), row)


def test_decode_beyond_the_context_is_refused() -> None:
    with pytest.raises(ValueError, match="beyond the context of 10 tokens"):
        check_batch(StageBatch((Row(B, 10, (1,), DRAW),)), {B: 10}, INFO)


def test_sequences_are_open_and_in_one_row_each() -> None:
    with pytest.raises(ValueError, match="in two rows"):
        check(Row(A, 3, (1,)), Row(A, 3, (1,)))
    with pytest.raises(KeyError, match="sequence 3 is not open"):
        check(Row(C, 0, (1,), DRAW))


def test_tokens_of_all_rows_count_towards_the_batch() -> None:
    with pytest.raises(ValueError, match="the batch has 7 tokens; at most 6 are allowed"):
        check(Row(A, 3, (1,) * 6), Row(B, 9, (1,), DRAW))


@pytest.mark.parametrize(
    ("row", "name"),
    [
        (Row(A, 3, (1,), DRAW, positions=(5,)), "positions"),
        (Row(A, 3, (1,), DRAW, spans=(Span(0, 1, 0),)), "embeddings"),
        (Row(A, 3, (1,), (Hidden(0),)), "hidden"),
        (Row(A, 3, (1, 1), (Hidden(1, 1),)), "hidden_sums"),
        (Row(A, 3, (1,), (Score(0, 1),)), "logprobs"),
        (Row(A, 3, (1,), (Draw(0, top=0),)), "logprobs"),
        (Row(A, 3, (1,), (Draw(0, masked=True),)), "masks"),
    ],
)
def test_capability_that_a_row_needs_is_asked_for_and_no_other(row: Row, name: Any) -> None:
    masks, needed = Masks(), {name, "hidden"} if name == "hidden_sums" else {name}
    check(row, info=replace(INFO, capabilities=frozenset(needed)), masks=masks)
    with pytest.raises(Unsupported, match=f"row of sequence 1 asks for {name}, which this stage does not support"):
        check(row, info=replace(ABLE, capabilities=ABLE.capabilities - {name}), masks=masks)


def test_masks_are_needed_where_a_draw_waits_and_only_on_the_last_stage() -> None:
    row = Row(A, 3, (1,), (Draw(0, masked=True),))
    check(row, masks=Masks())
    with pytest.raises(ValueError, match="a draw waits for a mask, and the batch has no masks"):
        check(Row(B, 9, (1,), DRAW), row)
    check(row, info=replace(INFO, gives=(HIDDEN,)))


def test_hidden_tensors_are_those_that_the_stage_takes() -> None:
    info, rows = replace(INFO, takes=(HIDDEN,)), (Row(A, 3, (1, 2)), Row(B, 9, (1,)))
    check(*rows, info=info, hidden=(make_hidden(3),))
    for wrong in ((), (make_hidden(2),), (make_hidden(3, "float16"),), (make_hidden(3),) * 2):
        with pytest.raises(ValueError, match="the hidden tensors are"):
            check(*rows, info=info, hidden=wrong)
    with pytest.raises(ValueError, match="expected \\[\\]"):
        check(*rows, hidden=(make_hidden(3),))


def test_embeddings_need_a_stage_that_takes_them() -> None:
    rows = (Row(A, 3, (1,), DRAW),)
    check(*rows, embeddings=(make_hidden(1),))
    with pytest.raises(Unsupported, match="takes no embeddings"):
        check(*rows, info=INFO, embeddings=(make_hidden(1),))


def make_pools(*infos: PoolInfo) -> list[PagePool]:
    """Return pools with two sequences, of 5 tokens each."""
    pools = [PagePool(info) for info in infos]
    for pool in pools:
        for seq in (A, B):
            pool.open(seq)
            for _ in range(5):
                pool.extend(seq, 1)
    return pools


@pytest.mark.parametrize(
    ("edit", "kind", "problem"),
    [
        (Open(A, SPEC), KeyError, "sequence 1 is open already"),
        (Fork(A, B, 5), KeyError, "sequence 2 is open already"),
        (Fork(SeqId(0), C, 0), KeyError, "sequence 0 is not open"),
        (Truncate(C, 0), KeyError, "sequence 3 is not open"),
        (Drop(C), KeyError, "sequence 3 is not open"),
        (Fork(A, C, 6), ValueError, "length 6 is not within the 5 tokens of sequence 1"),
        (Truncate(A, 6), ValueError, "length 6 is not within the 5 tokens of sequence 1"),
        (Truncate(A, -1), ValueError, "length -1 is not within the 5 tokens of sequence 1"),
        (Truncate(A, 3), Unsupported, "a window pool cannot rewind sequence 1 of 5 tokens to 3"),
        (Fork(A, C, 3), Unsupported, "a window pool cannot rewind sequence 1 of 5 tokens to 3"),
        (Open(C, ADAPTED), Unsupported, "'x'"),
        (Fork(A, C, 5, spec=ADAPTED), ValueError, "a fork of 1 cannot have the adapter 'x'"),
    ],
)
def test_edit_that_cannot_be_applied_is_refused(edit: Edit, kind: type[Exception], problem: str) -> None:
    pools = make_pools(FULL, WINDOW)
    with pytest.raises(kind) as caught:
        check_edit(edit, {A: SPEC, B: SPEC}, pools, INFO)
    assert problem in str(caught.value)


@pytest.mark.parametrize(
    "edit",
    [Open(C, SPEC), Fork(A, C, 5), Fork(A, C, 4, spec=SPEC), Truncate(A, 5), Truncate(A, 4), Drop(A)],
)
def test_edit_up_to_every_limit_is_taken_and_changes_nothing(edit: Edit) -> None:
    pools = make_pools(FULL, WINDOW)
    check_edit(edit, {A: SPEC, B: SPEC}, pools, INFO)
    assert [(pool.length(A), C in pool) for pool in pools] == [(5, False)] * 2


def test_stage_with_adapters_opens_sequences_of_one_and_forks_them_with_the_same() -> None:
    info = replace(INFO, capabilities=frozenset({"adapters"}))
    check_edit(Open(C, ADAPTED), {}, [], info)
    check_edit(Fork(A, C, 5, spec=ADAPTED), {A: ADAPTED}, make_pools(FULL), info)
    with pytest.raises(ValueError, match="cannot have the adapter ''"):
        check_edit(Fork(A, C, 5, spec=SPEC), {A: ADAPTED}, make_pools(FULL), info)


def test_room_is_that_of_every_pool_for_all_rows_together() -> None:
    pools = make_pools(replace(FULL, num_pages=9), FULL)
    check_room(pools, [Row(A, 5, (1, 1, 1)), Row(B, 5, (1, 1, 1))])
    with pytest.raises(OutOfPages) as caught:
        check_room(pools, [Row(A, 5, (1, 1, 1, 1)), Row(B, 5, (1,))])
    assert (caught.value.needed, caught.value.free) == (1, 0)
    assert [pool.length(A) for pool in pools] == [5, 5]

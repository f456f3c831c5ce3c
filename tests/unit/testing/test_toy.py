"""The toy answers by the plain model, whatever its pages do, and refuses what the contract says it must."""

from __future__ import annotations

import random
import threading
from collections.abc import Sequence

import pytest

from parallax_core.api import (
    BackendFailed,
    Draft,
    Draw,
    Drawn,
    Drop,
    Edit,
    Fork,
    Hidden,
    LayerRange,
    Open,
    OutOfPages,
    ParallaxError,
    Row,
    Sampling,
    Score,
    Scored,
    SeqId,
    SequenceSpec,
    Span,
    StageBatch,
    StageResult,
    State,
    Tensor,
    Truncate,
    Unsupported,
    draw,
    logprobs,
)
from parallax_core.contracts.stage import PoolKind
from parallax_core.testing.toy import GREEDY, Toy, ToyStage

ONE, TWO, THREE = SeqId(1), SeqId(2), SeqId(3)
PROMPT = (5, 60, 31, 31, 2, 96)
MODELS: list[tuple[PoolKind, ...]] = [
    ("full", "full"),
    ("window", "window"),
    ("state", "state"),
    ("latent",),
    ("full", "window", "state", "latent", "full"),
]


def open_sequence(stage: ToyStage, seq: SeqId, prompt_length: int = 0, sampling: Sampling = GREEDY) -> None:
    stage.edit([Open(seq, SequenceSpec(prompt_length=prompt_length, sampling=sampling))])


def run_row(stage: ToyStage, seq: SeqId, tokens: Sequence[int]) -> int:
    """Append tokens, and return the one drawn after them."""
    row = Row(seq, stage.tokens[seq], tuple(tokens), (Draw(len(tokens) - 1),))
    (answer,) = stage.step(StageBatch((row,))).wait().answers
    assert isinstance(answer, Drawn)
    return answer.tokens[0]


def generate(stage: ToyStage, seq: SeqId, tokens: Sequence[int], length: int) -> list[int]:
    output = [run_row(stage, seq, tokens)]
    while len(output) < length:
        output.append(run_row(stage, seq, output[-1:]))
    return output


@pytest.mark.parametrize("kinds", MODELS)
@pytest.mark.parametrize("sampling", [GREEDY, Sampling(temperature=1.5, seed=3, presence_penalty=1.0, top_k=20)])
def test_stage_draws_what_the_plain_model_does(kinds: tuple[PoolKind, ...], sampling: Sampling) -> None:
    toy = Toy(kinds)
    stage = toy.open()
    open_sequence(stage, ONE, len(PROMPT), sampling)
    assert generate(stage, ONE, PROMPT, 20) == toy.continuation(PROMPT, 20, sampling)


@pytest.mark.parametrize("kinds", MODELS)
def test_every_token_counts_and_where_it_stands(kinds: tuple[PoolKind, ...]) -> None:
    toy = Toy(kinds, window=9)
    expected = toy.logits(PROMPT)
    for index in range(len(PROMPT)):
        assert toy.logits((*PROMPT[:index], PROMPT[index] ^ 1, *PROMPT[index + 1 :])) != expected
    assert toy.logits(PROMPT, range(1, 7)) != expected
    assert toy.logits((31, 60, 5, *PROMPT[3:])) != expected


def test_window_forgets_what_lies_before_it() -> None:
    toy = Toy(("window", "window"), window=3)
    assert toy.logits((9, *PROMPT[1:])) == toy.logits(PROMPT)
    assert toy.logits((5, 9, *PROMPT[2:])) != toy.logits(PROMPT)


def test_logits_are_all_different_and_lie_in_range() -> None:
    for seed in range(50):
        logits = Toy().logits(random.Random(seed).choices(range(97), k=9))
        assert len(set(logits)) == 97
        assert 0 <= min(logits) < max(logits) < 8
        assert max(logits) - min(logits) > 4


@pytest.mark.parametrize("kinds", MODELS)
def test_stages_in_a_row_equal_the_whole(kinds: tuple[PoolKind, ...]) -> None:
    toy = Toy((*kinds, "full"))
    stages = [toy.open(LayerRange(layer, layer + 1)) for layer in range(len(toy.layers))]
    start, output = 0, list[int]()
    tokens: tuple[int, ...] = PROMPT
    for stage in stages:
        open_sequence(stage, ONE, len(PROMPT))
    for _ in range(10):
        result = StageResult()
        for stage in stages:
            row = Row(ONE, start, tokens, (Draw(len(tokens) - 1),))
            result = stage.step(StageBatch((row,), result.tensors)).wait()
        (answer,) = result.answers
        assert isinstance(answer, Drawn)
        output += answer.tokens
        start, tokens = start + len(tokens), answer.tokens
    assert output == toy.continuation(PROMPT, 10)


def test_positions_of_a_row_count() -> None:
    stage = Toy().open()
    open_sequence(stage, ONE)
    row = Row(ONE, 0, PROMPT, (Score(5, 7, 97),), positions=(0, 1, 5, 6, 7, 63))
    (answer,) = stage.step(StageBatch((row,))).wait().answers
    expected = logprobs(Toy().logits(PROMPT, (0, 1, 5, 6, 7, 63)))
    assert isinstance(answer, Scored)
    assert answer.logprob == expected[7]
    assert dict(answer.top) == dict(enumerate(expected))


def test_hidden_states_are_answered_with_tensors() -> None:
    stage = Toy().open()
    open_sequence(stage, ONE)
    result = stage.step(StageBatch((Row(ONE, 0, PROMPT, (Hidden(1), Draw(1), Hidden(5))),))).wait()
    assert [answer for answer in result.answers if isinstance(answer, State)] == [State(0), State(1)]
    assert [(tensor.dtype, tensor.shape) for tensor in result.tensors] == [("float32", (1,))] * 2
    assert result.tensors[0].data != result.tensors[1].data


BAD_ROWS: list[tuple[Row, type[Exception]]] = [
    (Row(TWO, 0, (1,)), KeyError),
    (Row(ONE, 5, (1,)), ValueError),
    (Row(ONE, 6, ()), ValueError),
    (Row(ONE, 6, (97,)), ValueError),
    (Row(ONE, 6, (-1,)), ValueError),
    (Row(ONE, 6, (1,) * 9), ValueError),
    (Row(ONE, 6, (1,), (Draw(1),)), ValueError),
    (Row(ONE, 6, (1, 2), (Draw(1), Draw(0))), ValueError),
    (Row(ONE, 6, (1,), (Score(0, 97),)), ValueError),
    (Row(ONE, 6, (1, 2), positions=(6,)), ValueError),
    (Row(ONE, 6, (1, 2), positions=(7, 7)), ValueError),
    (Row(ONE, 6, (1, 2), positions=(6, 64)), ValueError),
    (Row(ONE, 6, (1,), spans=(Span(0, 1, 0),)), Unsupported),
]


@pytest.mark.parametrize(("row", "error"), BAD_ROWS)
def test_bad_row_is_refused_and_changes_nothing(row: Row, error: type[Exception]) -> None:
    stage = Toy(("full", "window", "state")).open()
    open_sequence(stage, ONE)
    open_sequence(stage, THREE)
    run_row(stage, ONE, PROMPT)
    before = stage.free
    with pytest.raises(error):
        stage.step(StageBatch((Row(THREE, 0, PROMPT[:2]), row)))
    assert (stage.free, stage.tokens) == (before, {ONE: 6, THREE: 0})
    assert run_row(stage, ONE, (7,)) == Toy(("full", "window", "state")).continuation((*PROMPT, 7), 1)[0]


def test_batch_that_does_not_fit_is_refused() -> None:
    stage = Toy().open(max_batch_tokens=64, context=5)
    open_sequence(stage, ONE)
    row = Row(ONE, 0, PROMPT[:2])
    with pytest.raises(ValueError, match="two rows"):
        stage.step(StageBatch((row, row)))
    with pytest.raises(ValueError, match="context of 5"):
        run_row(stage, ONE, PROMPT)
    with pytest.raises(ValueError, match="hidden"):
        stage.step(StageBatch((row,), (Tensor("int64", (2, 1), bytes(16)),)))
    with pytest.raises(Unsupported):
        stage.step(StageBatch((row,), (), (Tensor("float32", (1, 1), bytes(4)),)))


BAD_EDITS: list[tuple[Edit, type[Exception]]] = [
    (Open(ONE, SequenceSpec(prompt_length=1, sampling=GREEDY)), KeyError),
    (Open(TWO, SequenceSpec(prompt_length=1, sampling=GREEDY, adapter="tuned")), Unsupported),
    (Fork(TWO, THREE, 0), KeyError),
    (Fork(ONE, ONE, 6), KeyError),
    (Fork(ONE, TWO, 7), ValueError),
    (Fork(ONE, TWO, 6, 0, SequenceSpec(prompt_length=1, sampling=GREEDY, adapter="tuned")), ValueError),
    (Fork(ONE, TWO, 3), Unsupported),
    (Truncate(ONE, 7), ValueError),
    (Truncate(ONE, -1), ValueError),
    (Truncate(ONE, 4), Unsupported),
    (Truncate(TWO, 0), KeyError),
    (Drop(TWO), KeyError),
]


@pytest.mark.parametrize(("edit", "error"), BAD_EDITS)
def test_bad_edit_is_refused_and_those_before_it_stay(edit: Edit, error: type[Exception]) -> None:
    stage = Toy(("full", "window")).open(rewind=1)
    open_sequence(stage, ONE)
    run_row(stage, ONE, PROMPT)
    before = stage.free
    with pytest.raises(error):
        stage.edit([Open(THREE, SequenceSpec(prompt_length=0, sampling=GREEDY)), edit])
    assert (stage.free, stage.tokens) == (before, {ONE: 6, THREE: 0})


def test_full_pool_changes_nothing() -> None:
    stage = Toy(("window", "full")).open(num_pages=3)
    open_sequence(stage, ONE)
    run_row(stage, ONE, PROMPT)
    open_sequence(stage, TWO)
    free = stage.free
    with pytest.raises(OutOfPages):
        stage.step(StageBatch((Row(TWO, 0, (1,)), Row(ONE, 6, (1, 2, 3)))))
    run_row(stage, TWO, PROMPT[:2])
    with pytest.raises(OutOfPages):
        stage.edit([Fork(ONE, THREE, 6)])
    assert stage.tokens == {ONE: 6, TWO: 2}
    stage.edit([Drop(TWO)])
    assert stage.free == free
    assert generate(stage, ONE, (8,), 2) == Toy(("window", "full")).continuation((*PROMPT, 8), 2)


def test_rows_may_take_what_those_before_them_give_back() -> None:
    toy = Toy(("window",), window=2)
    stage = toy.open(num_pages=3, page_size=2)
    for seq in (ONE, TWO):
        open_sequence(stage, seq)
    run_row(stage, ONE, PROMPT[:4])
    run_row(stage, TWO, PROMPT[:2])
    # The first row forgets a page and needs one, and so does not stand in the way of the second.
    rows = (Row(ONE, 4, (9, 8), (Draw(1),)),)
    (answer,) = stage.step(StageBatch(rows)).wait().answers
    assert answer == Drawn(tuple(toy.continuation((*PROMPT[:4], 9, 8), 1)))
    assert stage.free == (0,)


def test_hooks_see_what_the_stage_is_asked_and_may_refuse_it() -> None:
    stage = Toy().open()
    seen: list[SequenceSpec] = []
    stage.before_open = seen.append
    open_sequence(stage, ONE, 6)
    stage.edit([Fork(ONE, TWO, 0), Fork(ONE, THREE, 0, 1, SequenceSpec(prompt_length=2, sampling=GREEDY))])
    assert [spec.prompt_length for spec in seen] == [6, 2]
    assert [fork.dst for fork in stage.forks] == [TWO, THREE]

    def refuse(batch: StageBatch) -> None:
        raise BackendFailed("not now")

    stage.before_step = refuse
    with pytest.raises(BackendFailed):
        run_row(stage, ONE, PROMPT)
    assert (len(stage.batches), stage.tokens[ONE]) == (1, 0)


def test_closed_stage_and_a_second_thread_are_refused() -> None:
    stage = Toy().open()
    open_sequence(stage, ONE)
    caught: list[Exception] = []

    def work() -> None:
        try:
            stage.edit([Drop(ONE)])
        except BackendFailed as error:
            caught.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert len(caught) == 1
    stage.close()
    stage.close()
    assert stage.closed
    with pytest.raises(BackendFailed, match="closed"):
        stage.edit([])


def test_toy_has_only_its_layers() -> None:
    for layers in (LayerRange(0, 3), LayerRange(1, 1), LayerRange(-1, 1)):
        with pytest.raises(ValueError, match="has 2 layers"):
            Toy().open(layers)


def test_lease_of_half_of_the_layers_and_memory_has_as_many_pages() -> None:
    stage = Toy(("full", "full", "window", "state")).open_leased(num_pages=16, state_pages=8)
    for layers in (LayerRange(0, 2), LayerRange(2, 4)):
        pages = {pool.kind: pool.num_pages for pool in stage.lease(layers, 0.5).info.pools}
        assert pages == {kind: 8 if kind == "state" else 16 for kind in pages}


def test_lease_without_a_page_is_refused() -> None:
    with pytest.raises(ParallaxError, match="of 4 pages are none") as caught:
        Toy().open_leased(num_pages=4).lease(LayerRange(0, 2), 0.1)
    assert "larger share" in caught.value.hint


@pytest.mark.parametrize("kinds", [("full", "full"), ("window",), ("state", "latent"), ("full", "window", "full")])
@pytest.mark.parametrize("sampling", [GREEDY, Sampling(seed=5, presence_penalty=1.0)])
def test_continuation_is_drawn_from_the_logits_of_all_tokens_before(
    kinds: tuple[PoolKind, ...], sampling: Sampling
) -> None:
    toy, prompt, output = Toy(kinds), [5, 3, 8], list[int]()
    for _ in range(20):
        output.append(draw(toy.logits([*prompt, *output]), Draft(sampling, prompt, output)))
    for length in (0, 1, 20):
        assert toy.continuation(prompt, length, sampling) == output[:length]

"""What a part of a step or of a result is said to take in a header is never less than what the codec writes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from parallax_core.base.ids import Epoch, SeqId
from parallax_core.contracts.sample import Sampling
from parallax_core.contracts.stage import (
    Answer,
    Draw,
    Drawn,
    Edit,
    Fork,
    LayerRange,
    Open,
    PoolInfo,
    Row,
    Score,
    Scored,
    SequenceSpec,
    StageInfo,
)
from parallax_core.contracts.tensor import Tensor, TensorSpec
from parallax_core.contracts.value import LARGEST, LARGEST_FLOAT
from parallax_core.wire.codec import ENCODER, encode
from parallax_core.wire.messages import Result, Step
from parallax_core.wire.size import (
    DRAW,
    ROW,
    SCORE,
    TOKEN,
    bound_drawn,
    bound_edit,
    bound_envelope,
    bound_scored,
    bound_spec,
)
from tests.unit.wire.strategies import counts, edits, scores, specs

texts = st.text(max_size=300)
wide_specs = st.builds(
    replace,
    specs,
    adapter=texts,
    salt=texts,
    sampling=st.builds(
        Sampling,
        temperature=st.just(LARGEST_FLOAT),
        seed=st.just(2**64 - 1),
        logit_bias=st.lists(st.tuples(counts, scores), max_size=80).map(tuple),
        stop_ids=st.lists(counts, max_size=80).map(tuple),
    ),
)
wide_edits = st.one_of(
    edits,
    st.builds(Open, counts.map(SeqId), wide_specs, counts),
    st.builds(Fork, counts.map(SeqId), counts.map(SeqId), counts, counts, wide_specs),
)


def measure(part: object) -> int:
    return len(ENCODER.encode(part))


@given(wide_edits)
def test_bound_of_an_edit_is_not_below_what_is_written(edit: Edit) -> None:
    assert measure(edit) <= bound_edit(edit)


@given(wide_specs)
def test_bound_of_a_spec_is_not_below_what_is_written(spec: SequenceSpec) -> None:
    assert measure(spec) <= bound_spec(spec)


@st.composite
def make_rows(draw: st.DrawFn) -> tuple[Row, int]:
    """Return a row as a head makes them, and its bound."""
    tokens = draw(st.lists(counts, min_size=1, max_size=40).map(tuple))
    scored = draw(st.integers(0, len(tokens)))
    outputs: list[Draw | Score] = [Score(offset, draw(counts), draw(counts)) for offset in range(scored)]
    if draw(st.booleans()):
        outputs.append(Draw(len(tokens) - 1, draw(st.integers(1, LARGEST)), draw(counts)))
    row = Row(SeqId(draw(counts)), draw(counts), tokens, tuple(outputs))
    return row, ROW + DRAW + len(tokens) * TOKEN + scored * SCORE


@given(make_rows())
def test_bound_of_a_row_is_not_below_what_is_written(made: tuple[Row, int]) -> None:
    row, bound = made
    assert measure(row) <= bound


def test_bound_of_a_row_holds_for_more_tokens_than_a_short_prefix_counts() -> None:
    row = Row(SeqId(LARGEST), LARGEST, (LARGEST,) * 2**16)
    assert measure(row) <= ROW + len(row.tokens) * TOKEN


@st.composite
def make_answers(draw: st.DrawFn) -> tuple[Answer, int]:
    """Return an answer as a stage gives them, and its bound."""
    pairs = tuple(draw(st.lists(st.tuples(counts, scores), max_size=40)))
    if draw(st.booleans()):
        return Scored(draw(scores), pairs), bound_scored(len(pairs))
    tokens = tuple(draw(st.lists(counts, min_size=1, max_size=40)))
    if draw(st.booleans()):
        return Drawn(tokens), bound_drawn(len(tokens), -1)
    return Drawn(tokens, tuple(draw(scores) for _ in tokens), pairs), bound_drawn(len(tokens), len(pairs))


@given(make_answers())
def test_bound_of_an_answer_is_not_below_what_is_written(made: tuple[Answer, int]) -> None:
    answer, bound = made
    assert measure(answer) <= bound


def make_stage(num_pools: int, num_tensors: int) -> StageInfo:
    return StageInfo(
        layers=LayerRange(0, 1),
        num_layers=1,
        vocab_size=10,
        context_length=64,
        max_batch_tokens=16,
        pools=(PoolInfo(kind="full", page_size=4, num_pages=4),) * num_pools,
        device="none",
        dtype="float32",
        weight_bytes=0,
        weights_version="1",
        takes=(TensorSpec(1, "bfloat16"),) * num_tensors,
    )


@given(
    edits=st.lists(wide_edits, max_size=20).map(tuple),
    rows=st.lists(make_rows(), max_size=20).map(tuple),
    answers=st.lists(make_answers(), max_size=20).map(tuple),
    num_pools=st.integers(1, 64),
    num_tensors=st.integers(0, 64),
)
def test_header_of_a_step_and_of_its_result_is_not_above_the_sum_of_the_parts(
    edits: tuple[Edit, ...],
    rows: tuple[tuple[Row, int], ...],
    answers: tuple[tuple[Answer, int], ...],
    num_pools: int,
    num_tensors: int,
) -> None:
    envelope = bound_envelope([make_stage(1, 0), make_stage(num_pools, num_tensors)])
    epoch = Epoch(LARGEST)
    hidden = (Tensor("bfloat16", (0, LARGEST), b""),) * num_tensors
    step = encode(Step(epoch, LARGEST, edits, tuple(row for row, _ in rows), hidden))
    assert len(step.header) <= envelope + sum(map(bound_edit, edits)) + sum(bound for _, bound in rows)
    free = (LARGEST,) * num_pools
    result = encode(Result(epoch, LARGEST, LARGEST, tuple(answer for answer, _ in answers), free, 1e300, (), 1e300))
    assert len(result.header) <= envelope + sum(bound for _, bound in answers)


def test_bounds_are_not_wasteful_where_numbers_are_large() -> None:
    """A bound that is too careful would make steps small for nothing."""
    sampling = Sampling(logit_bias=((LARGEST, 0.5),) * 1024)
    spec = SequenceSpec(prompt_length=LARGEST, sampling=sampling)
    row = Row(SeqId(LARGEST), LARGEST, (LARGEST,), (Draw(0, LARGEST, LARGEST),))
    scored = Scored(0.5, ((LARGEST, 0.5),) * 20)
    assert bound_edit(Open(SeqId(LARGEST), spec)) < 1.05 * measure(Open(SeqId(LARGEST), spec))
    assert 2 * measure(row) > ROW + DRAW + TOKEN
    assert bound_scored(20) < 1.1 * measure(scored)

"""No header of a step or its result exceeds the receiver's limit, whatever clients request."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parallax_core.api import (
    Answer,
    Draw,
    Drawn,
    Drop,
    Epoch,
    InvalidRequest,
    LayerRange,
    Output,
    PoolInfo,
    Sampling,
    Score,
    Scored,
    StageInfo,
    StageResult,
    State,
    Tensor,
)
from parallax_core.contracts.engine import Pooling
from parallax_core.contracts.transport import FrameLimits
from parallax_core.engine.head import Head
from parallax_core.engine.header_budget import FIXED, HeaderBudget, RowCost, weigh_rows
from parallax_core.engine.inflight import PlannedStep
from parallax_core.engine.limits import Limits
from parallax_core.engine.options import HeadOptions
from parallax_core.wire.codec import encode
from parallax_core.wire.messages import Result
from parallax_core.wire.messages import Step as StepMessage
from tests.unit.engine.replica import TOY, Replica, decode, make_request

LIMIT = FrameLimits().header_bytes
INFO = StageInfo(
    layers=LayerRange(0, 1),
    num_layers=1,
    vocab_size=2**31,
    context_length=2**20,
    max_batch_tokens=2**15,
    pools=(PoolInfo(kind="full", page_size=16, num_pages=2**20),),
    device="none",
    dtype="float32",
    weight_bytes=0,
    weights_version="1",
    capabilities=frozenset({"logprobs"}),
)
FAR = 2**31 - 1
"""A token id of the longest encoding."""


def run_head(head: Head, most: int = 1000) -> list[tuple[int, int, PlannedStep]]:
    """Answer every step until none is left; return the sizes of the headers of steps and results, with the steps."""
    found: list[tuple[int, int, PlannedStep]] = []
    for _ in range(most):
        step = head.plan(0.0)
        if step is None:
            return found
        answers = tuple(make_answer(output) for row in step.batch.rows for output in row.outputs)
        sent = StepMessage(Epoch(1), step.batch.step, step.edits, step.batch.rows)
        result = Result(Epoch(1), step.batch.step, 0, answers)
        found.append((len(encode(sent).header), len(encode(result).header), step))
        head.absorb(StageResult(answers), 0.0)
    raise AssertionError("it never ends")


def make_answer(output: Output) -> Answer:
    assert isinstance(output, Draw | Score)
    top = tuple((FAR - number, -0.1 * number) for number in range(max(0, output.top)))
    if isinstance(output, Score):
        return Scored(-0.1, top)
    return Drawn((FAR,) * output.count, (-0.1,) * output.count if output.top >= 0 else (), top)


def make_head() -> Head:
    return Head([INFO], decode, HeadOptions(limits=Limits(max_running=1024, max_waiting=1024)))


def test_many_answers_with_many_biases_fit_into_the_frames_of_steps() -> None:
    head = make_head()
    sampling = Sampling(logit_bias=tuple((FAR - token, -1.5) for token in range(1024)))
    for number in range(3):
        head.accept(make_request([number] * 20, 2, n=128, sampling=sampling), 0.0)
    found = run_head(head)
    assert max(size for size, _, _ in found) < LIMIT / 20, "what holds for a request is said more than once"
    assert sum(len(step.edits) for _, _, step in found) >= 3 * 128


def test_many_requests_with_many_biases_fit_into_the_frames_of_steps() -> None:
    head = make_head()
    for number in range(400):
        biases = tuple((FAR - token, number + 0.5) for token in range(1024))
        head.accept(make_request([number] * 20, 2, sampling=Sampling(logit_bias=biases)), 0.0)
    found = run_head(head)
    assert LIMIT / 2 < max(size for size, _, _ in found) <= LIMIT
    assert head.take_deltas()[-1][1].finish is not None
    assert head.stats().waiting == head.stats().running == 0


def test_long_prompt_with_the_best_tokens_at_each_place_fits_into_the_frames_of_results() -> None:
    head = make_head()
    head.accept(make_request([FAR] * 30_000, 1, prompt_logprobs=20, logprobs=20), 0.0)
    found = run_head(head)
    assert LIMIT / 2 < max(size for _, size, _ in found) <= LIMIT
    assert len(found) == 3


@pytest.mark.parametrize(
    ("field", "fields"),
    [
        ("logit_bias", {"sampling": Sampling(logit_bias=tuple((token, 0.5) for token in range(300)))}),
        ("stop_ids", {"sampling": Sampling(stop_ids=tuple(range(600)), min_tokens=1)}),
        ("salt", {"salt": "x" * 5000}),
        ("logprobs", {"logprobs": 400}),
        ("prompt_logprobs", {"prompt_logprobs": 400}),
        ("n", {"n": 128, "logprobs": 90}),
    ],
)
def test_request_that_no_frame_could_carry_is_refused_by_name(field: str, fields: dict[str, Any]) -> None:
    head = Head([INFO], decode, HeadOptions(limits=Limits(max_running=10, header_bytes=4096)))
    with pytest.raises(InvalidRequest, match="of the request are too large") as caught:
        head.accept(make_request([1, 2, 3], **fields), 0.0)
    assert caught.value.param == field
    assert head.stats().waiting == 0
    Head([INFO], decode, HeadOptions(limits=Limits(max_running=10))).accept(make_request([1, 2, 3], **fields), 0.0)


@pytest.mark.parametrize("pooling", ["last", "mean"])
def test_embedding_takes_no_more_of_a_result_than_its_request_says(pooling: Pooling) -> None:
    sizes = []
    for count in (0, 1):
        answers, tensors = (State(FAR),) * count, (Tensor("float32", (2**16,), bytes(2**18)),) * count
        sizes.append(len(encode(Result(Epoch(1), FAR, 0, answers, tensors=tensors)).header))
    assert 0 < sizes[1] - sizes[0] <= weigh_rows(make_request([1], pooling=pooling)).first_draw


def test_room_for_many_is_made_over_several_steps_when_one_cannot_name_them_all() -> None:
    limits = Limits(max_running=4, max_waiting=100, header_bytes=700)
    replica = Replica(TOY.open(num_pages=60, page_size=2, context=130, max_batch_tokens=30), limits=limits)
    for number in range(30):
        replica.ask([number + 10] * 4, 1)
        replica.run()
    last = replica.ask([token % 7 for token in range(110)], 1)
    drops = []
    while (step := replica.head.plan(replica.now)) is not None:
        drops.append(sum(isinstance(edit, Drop) for edit in step.edits))
        replica.head.absorb(replica.compute(step), replica.now)
        replica.collect()
    assert sum(drops) == 28
    assert max(drops) < 28
    assert replica.chain.largest_header <= 700
    replica.check_tokens(last)


@given(
    header_bytes=st.integers(600, 5000),
    rows=st.lists(
        st.tuples(st.integers(1, 50), st.integers(9, 100), st.sampled_from([0, 30, 400]), st.integers(30, 900)),
        max_size=40,
    ),
)
def test_rows_never_take_more_than_there_is(header_bytes: int, rows: list[tuple[int, int, int, int]]) -> None:
    budget = HeaderBudget([INFO], header_bytes, max_running=3)
    in_step = in_result = 0
    for wanted, token, scored, draw in rows:
        cost = RowCost(begin=0, token=token, scored=scored, first_draw=draw, next_draw=draw)
        count = budget.limit_row(cost, draw, wanted)
        assert 0 <= count <= wanted
        if count < wanted:
            longer = (FIXED + (count + 1) * token, draw + (count + 1) * scored)
            is_too_long = in_step + longer[0] > budget.most_in_step or in_result + longer[1] > budget.most_in_result
            assert is_too_long, "there was room for more"
        if count:
            budget.take_row(cost, draw, count)
            in_step += FIXED + count * token
            in_result += draw + count * scored
    assert in_step <= budget.most_in_step
    assert in_result <= budget.most_in_result


def test_budget_leaves_room_to_drop_whoever_runs() -> None:
    few, many = (HeaderBudget([INFO], LIMIT, max_running) for max_running in (1, 101))
    assert few.most_in_step - many.most_in_step == 100 * 19
    assert replace(Limits(), max_running=1).header_bytes == LIMIT


def test_row_that_does_not_fit_gets_no_token_and_one_that_fits_exactly_gets_all() -> None:
    budget = HeaderBudget([INFO], 2000, max_running=3)
    step, result = budget.most_in_step, budget.most_in_result
    for draw, scored, wanted, most in (
        (0, 0, 5, 5),
        (result, 0, 1, 1),
        (result + 1, 0, 1, 0),
        (result - 30, 30, 1, 1),
        (result - 29, 30, 1, 0),
        (result - 95, 30, 9, 3),
    ):
        cost = RowCost(begin=0, token=10, scored=scored, first_draw=draw, next_draw=draw)
        assert budget.limit_row(cost, draw, wanted) == most
    for room, most in ((FIXED + 10, 1), (FIXED + 9, 0), (FIXED + 29, 2), (FIXED + 30, 3)):
        budget.reset()
        budget.take(step - room)
        cost = RowCost(begin=0, token=10, scored=0, first_draw=0, next_draw=0)
        assert budget.limit_row(cost, 0, 9) == most
        assert budget.fits(room)
        assert not budget.fits(room + 1)


def test_states_of_a_step_are_no_more_than_a_result_carries() -> None:
    budget = HeaderBudget([INFO], LIMIT, max_running=3)
    cost = weigh_rows(make_request([1], pooling="mean"))
    for _ in range(FrameLimits().buffers):
        assert budget.limit_row(cost, 0, 1) == 1
        budget.take_row(cost, 0, 1)
    assert budget.limit_row(cost, 0, 1) == 0
    assert budget.limit_row(weigh_rows(make_request([1])), 0, 1) == 1
    budget.reset()
    assert budget.limit_row(cost, 0, 1) == 1


def test_request_costs_what_it_asks_for() -> None:
    plain, scored, pooled, several, named = (
        weigh_rows(make_request([1], **given))
        for given in ({}, {"prompt_logprobs": 0}, {"pooling": "last"}, {"n": 3}, {"logprobs": 2, "n": 3})
    )
    assert (plain.scored, plain.num_states, pooled.num_states) == (0, 0, 1)
    assert plain.first_draw == plain.next_draw
    assert scored.token > plain.token
    assert scored.scored > 0
    assert pooled.first_draw > pooled.next_draw == plain.next_draw
    assert several.first_draw > several.next_draw == plain.next_draw
    assert named.first_draw > several.first_draw
    assert named.next_draw > plain.next_draw

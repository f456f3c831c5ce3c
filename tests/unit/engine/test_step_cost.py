"""What steps cost, learnt from given times."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parallax_core.api import Row
from parallax_core.base.ids import SeqId
from parallax_core.engine.step_cost import StepCosts, StepSize, measure_rows
from tests.unit.engine.timed import make_law

LAW = make_law(fixed=0.02, decode_s=0.002, prompt_s=0.0004, context_s=1e-7)
SIZES = st.builds(
    StepSize,
    num_decodes=st.integers(0, 64),
    decode_context=st.integers(0, 10**6),
    num_prompt=st.integers(0, 2048),
    prompt_context=st.floats(0, 10**8),
)


def list_mixed() -> list[StepSize]:
    return [
        StepSize(decodes, decodes * 500, prompt, prompt * 300.0)
        for prompt in (0, 16, 256, 64, 32)
        for decodes in (1, 8, 4, 16, 2)
    ]


def test_size_counts_decodes_and_prompts_apart() -> None:
    rows = [Row(SeqId(0), 100, (1,)), Row(SeqId(1), 50, (1,)), Row(SeqId(2), 1000, (1,) * 10)]
    assert measure_rows(rows) == StepSize(2, 150, 10, 10 * 1005.0)


def test_costs_are_learnt_from_mixed_steps() -> None:
    costs = StepCosts()
    for _ in range(20):
        for size in list_mixed():
            costs.note(size, LAW(size))
    for size in (StepSize(6, 3000), StepSize(12, 6000, 100, 3e4), StepSize(0, 0, 200, 6e4)):
        assert costs.predict(size) == pytest.approx(LAW(size), rel=0.1)


def test_costs_follow_a_machine_that_gets_slower() -> None:
    costs = StepCosts()
    for slowdown in (1, 3):
        for _ in range(20):
            for size in list_mixed():
                costs.note(size, slowdown * LAW(size))
    assert costs.predict(StepSize(6, 3000)) == pytest.approx(3 * LAW(StepSize(6, 3000)), rel=0.1)


CONTEXTS = (1000, 64_000, 4000, 256_000, 16_000)


def test_cost_of_the_context_of_decodes_is_learnt_apart_from_that_of_decodes() -> None:
    costs = StepCosts()
    for _ in range(20):
        for context in CONTEXTS:
            costs.note(StepSize(4, context), LAW(StepSize(4, context)))
    for context in (2000, 200_000):
        assert costs.predict(StepSize(4, context)) == pytest.approx(LAW(StepSize(4, context)), rel=0.1)


def test_context_costs_nothing_where_longer_ones_take_less() -> None:
    costs = StepCosts()
    for _ in range(20):
        for context in CONTEXTS:
            costs.note(StepSize(4, context), 0.02 - context * 1e-8)
    assert costs.predict(StepSize(4, 10**6)) == costs.predict(StepSize(4)) == pytest.approx(0.02, rel=0.15)


def test_step_that_takes_far_longer_hardly_counts() -> None:
    costs = StepCosts()
    costs.note(StepSize(4), 30.0)
    for _ in range(3):
        costs.note(StepSize(4), 0.02)
    assert costs.predict(StepSize(4)) == pytest.approx(0.02, rel=0.01)


def test_nothing_is_predicted_before_a_step_was_measured() -> None:
    costs = StepCosts()
    costs.note(StepSize(4), 0.0)
    assert (costs.num_steps, costs.predict(StepSize(4))) == (0, 0.0)
    assert costs.fit_prompt(1.0, 0) == math.inf
    assert costs.fit_prompt(0.0, 0) == 0.0, "there is no time, whatever they cost"


@given(st.lists(st.tuples(SIZES, st.floats(1e-6, 1e3)), max_size=60), SIZES)
def test_no_prediction_is_negative_and_the_same_times_give_the_same(
    steps: list[tuple[StepSize, float]], asked: StepSize
) -> None:
    first, second = StepCosts(), StepCosts()
    for size, seconds in steps:
        first.note(size, seconds)
        second.note(size, seconds)
    assert 0 <= first.predict(asked) < math.inf
    assert first.predict(asked) == second.predict(asked)


@given(
    st.lists(st.tuples(SIZES, st.floats(1e-3, 1e3)), min_size=1, max_size=20),
    st.floats(1e-3, 10),
    st.integers(0, 10**5),
)
def test_prompt_that_fits_takes_the_seconds_it_may(
    steps: list[tuple[StepSize, float]], seconds: float, start: int
) -> None:
    costs = StepCosts()
    for size, taken in steps:
        costs.note(size, taken)
    count = costs.fit_prompt(seconds, start)
    if count < 10**9:
        assert costs.predict_prompt(start, 1) * count <= seconds * 1.01 or count < 1  # a part of a token
        whole = count * (costs.predict_prompt(start, 1) + costs.predict_prompt(start + int(count), 1)) / 2
        assert whole == pytest.approx(seconds, rel=0.05, abs=costs.predict_prompt(start + int(count), 2))


PARTS = ("num_decodes", "decode_context", "num_prompt", "prompt_context")


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("count", [1e-3, 1.0, 1e6])
def test_costs_are_learnt_of_the_smallest_parts_as_of_large_ones(part: str, count: float) -> None:
    """Each step is empty or has the part alone, at any scale: its cost is that by which the steps differ."""
    parts: dict[str, Any] = {part: count}
    empty, size = StepSize(0, 0), StepSize(0, 0)._replace(**parts)
    costs = StepCosts()
    for _ in range(40):
        costs.note(empty, 100.0)
        costs.note(size, 500.0)
    assert costs.predict(empty) == pytest.approx(100.0, rel=0.05)
    assert costs.predict(size) == pytest.approx(500.0, rel=0.05)

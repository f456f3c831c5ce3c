from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parallax_cluster.placement.cost_model import CostModel
from parallax_cluster.step_time import StageTime, count_attended, list_windows, weigh_rows
from parallax_core.base.ids import SeqId
from parallax_core.contracts.stage import Draw, Row
from tests.support.clusters import make_problem


def make_rows(lengths: list[tuple[int, int]]) -> list[Row]:
    return [Row(SeqId(rank), start, (0,) * count, (Draw(count - 1, 1),)) for rank, (start, count) in enumerate(lengths)]


@given(st.integers(0, 10**4), st.integers(1, 64))
def test_decodes_take_as_long_as_the_cost_model_says(seed: int, batch: int) -> None:
    costs = CostModel(make_problem(seed, 3))
    context = int(costs.goal.prompt_tokens + costs.goal.output_tokens / 2)
    stage, windows = StageTime(costs, 0, 1, 4), list_windows(costs.layers)
    rows = make_rows([(context - 1, 1)] * batch)
    expected = costs.measure_step(0, 1, 4, costs.sum_decode(batch))
    assert stage.measure(weigh_rows(rows, windows)) == pytest.approx(expected, rel=1e-6)


def test_slow_stage_takes_as_many_times_longer() -> None:
    costs = CostModel(make_problem(1, 3))
    work = weigh_rows(make_rows([(0, 100), (50, 1)]), list_windows(costs.layers))
    assert StageTime(costs, 0, 0, 2, 3.0).measure(work) == pytest.approx(3 * StageTime(costs, 0, 0, 2).measure(work))


def test_rows_read_their_states_besides_the_weights() -> None:
    problem = make_problem(1, 3)
    layers = tuple(replace(layer, state=100 * layer.weights) for layer in problem.model.layers)
    costs = CostModel(replace(problem, model=replace(problem.model, layers=layers)))
    windows, stage = list_windows(costs.layers), StageTime(costs, 0, 0, 2)
    one, two, three = (stage.measure(weigh_rows(make_rows([(5, 1)] * batch), windows)) for batch in (1, 2, 3))
    assert 1.9 * one < two < 2 * one
    assert three - two == pytest.approx(two - one, rel=1e-3)


@given(st.integers(0, 300), st.integers(1, 300), st.integers(0, 200))
def test_attended_tokens_are_those_of_each_token(start: int, count: int, window: int) -> None:
    each = [min(position + 1, window) if window else position + 1 for position in range(start, start + count)]
    assert count_attended(start, count, window) == sum(each)

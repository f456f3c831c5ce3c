from __future__ import annotations

from math import inf

from hypothesis import given, settings
from hypothesis import strategies as st

from parallax_cluster.placement.cost_model import CostModel
from parallax_cluster.placement.stage_table import Effort, StageTables, limit_table, tabulate_stage
from tests.support.clusters import make_problem


@settings(deadline=None, max_examples=10)
@given(st.integers(0, 10**6), st.integers(1, 8))
def test_table_has_the_seconds_of_every_range_that_fits(seed: int, num_requests: int) -> None:
    costs = CostModel(make_problem(seed, 3))
    price, table = costs.price_stage(2, num_requests), tabulate_stage(costs, 0, 2, num_requests)
    for stop in range(1, costs.num_layers + 1):
        for start in range(stop):
            fits = costs.count_fitting(0, start, stop) >= num_requests
            assert table[stop][start] == (price(0, start, stop) if fits else inf)


def test_dear_ranges_are_left_out_of_a_limited_table() -> None:
    assert limit_table([[], [1.0], [3.0, 2.0]], 2.0) == [[], [1.0], [inf, 2.0]]


def test_table_is_computed_once() -> None:
    effort = Effort(1000)
    tables = StageTables(CostModel(make_problem(1, 3)), effort)
    first = tables.find(0, 2, 4)
    left = effort.left
    assert left < 1000
    assert tables.find(0, 2, 4) is first
    assert effort.left == left

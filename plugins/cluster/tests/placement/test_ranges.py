from __future__ import annotations

from itertools import combinations, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parallax_cluster.placement.cost_model import CostModel
from parallax_cluster.placement.ranges import Ranges, balance_ranges, find_slowest, shorten_ranges
from tests.support.clusters import make_problem


def list_ranges(costs: CostModel, order: tuple[int, ...], num_requests: int) -> list[Ranges]:
    """Return all ranges of some of the nodes, in order, that have memory for the requests."""
    found: list[Ranges] = []
    for number in range(1, len(order) + 1):
        for nodes in combinations(order, number):
            for inner in combinations(range(1, costs.num_layers), number - 1):
                cuts = (0, *inner, costs.num_layers)
                stages = zip(nodes, pairwise(cuts), strict=True)
                if all(costs.count_fitting(node, *cut) >= num_requests for node, cut in stages):
                    found.append((nodes, cuts))
    return found


@settings(deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 8))
def test_balanced_ranges_have_the_fastest_slowest_stage(seed: int, num_requests: int) -> None:
    costs = CostModel(make_problem(seed, 4))
    order = tuple(range(len(costs.nodes)))
    found, every = balance_ranges(costs, order, num_requests), list_ranges(costs, order, num_requests)
    if not every:
        assert found is None
        return
    assert found is not None
    assert found in every
    price = costs.price_stage(len(order), num_requests)
    assert find_slowest(price, found) == pytest.approx(min(find_slowest(price, each) for each in every))


@settings(deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 8), st.floats(1.0, 3.0))
def test_shortened_ranges_take_the_least_time_within_the_bound(seed: int, num_requests: int, slack: float) -> None:
    costs = CostModel(make_problem(seed, 4))
    order = tuple(range(len(costs.nodes)))
    price = costs.price_stage(len(order), num_requests)
    every = [each for each in list_ranges(costs, order, num_requests) if len(each[0]) == len(order)]
    bound = slack * min((find_slowest(price, each) for each in every), default=0.0)
    within = [each for each in every if find_slowest(price, each) <= bound]
    found = shorten_ranges(costs, order, num_requests, bound)

    def total(ranges: Ranges) -> float:
        return sum(price(node, *cut) for node, cut in zip(ranges[0], pairwise(ranges[1]), strict=True))

    assert (found is None) == (not within)
    if found:
        assert total(found) == pytest.approx(min(map(total, within)))

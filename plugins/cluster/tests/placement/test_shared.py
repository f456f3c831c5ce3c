from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parallax_cluster.placement.shared import Rates, plan_shared


def make_rates(powers: Sequence[float], link: float, far: int) -> Rates:
    """Return nodes of some power that hold half of 8 layers each; links to nodes from ``far`` on are slow."""
    return Rates(
        num_layers=8,
        node=lambda node, start, stop: powers[node] / (stop - start) if stop - start <= 4 else 0.0,
        link=lambda one, other: link if (one < far) != (other < far) else 1e6,
    )


def test_slow_links_are_used_side_by_side() -> None:
    rates = make_rates([8, 4, 4], 1.0, 1)
    plan = plan_shared(rates, [(0, 1, 2)])
    assert plan.held == {0: (0, 4), 1: (4, 8), 2: (4, 8)}
    assert plan.rate == pytest.approx(2.0, rel=1e-3)
    assert sorted(nodes for nodes, _ in plan.paths) == [(0, 1), (0, 2)]


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_rate_is_the_highest_whatever_its_unit(scale: float) -> None:
    rates = make_rates([9 * scale, 3 * scale, 3 * scale], 1.0, 0)
    plan = plan_shared(rates, [(0, 1, 2)], effort=0)
    assert plan.held == {0: (0, 4), 1: (4, 6), 2: (6, 8)}
    assert plan.rate == pytest.approx(1.5 * scale)


def test_model_that_no_node_holds_has_no_path() -> None:
    plan = plan_shared(make_rates([8], 1.0, 1), [(0,)])
    assert (plan.held, plan.rate, plan.paths) == ({}, 0.0, ())


@settings(deadline=None, max_examples=10)
@given(st.lists(st.integers(1, 9), min_size=2, max_size=6), st.floats(0.1, 9.0), st.integers(0, 3))
def test_every_path_has_all_layers_and_no_node_passes_more_than_it_can(
    powers: list[int], link: float, far: int
) -> None:
    rates = make_rates(powers, link, far)
    plan = plan_shared(rates, [range(len(powers))], effort=20)
    passed = dict.fromkeys(plan.held, 0.0)
    for nodes, flow in plan.paths:
        cuts = [plan.held[node] for node in nodes]
        assert [start for start, _ in cuts] + [8] == [0] + [stop for _, stop in cuts]
        for node in nodes:
            passed[node] += flow
    assert all(flow <= rates.node(node, *plan.held[node]) * (1 + 1e-6) for node, flow in passed.items())
    assert sum(flow for _, flow in plan.paths) == pytest.approx(plan.rate)


def test_same_seed_gives_the_same_plan() -> None:
    rates = make_rates([3, 8, 4, 5], 0.7, 2)
    assert plan_shared(rates, [range(4)], seed=3) == plan_shared(rates, [range(4)], seed=3)


@pytest.mark.parametrize("seed", [1, 3, 4, 6])
def test_changes_of_the_order_find_nearly_the_best_one(seed: int) -> None:
    random = Random(seed)
    rates = make_rates([random.randint(1, 9) for _ in range(4)], random.choice([0.3, 0.7, 2.0]), random.randint(1, 3))
    each = [plan_shared(rates, [order], effort=0).rate for order in permutations(range(4))]
    assert plan_shared(rates, [range(4)], effort=60).rate >= 0.98 * max(each)
    assert plan_shared(rates, permutations(range(4)), effort=0).rate >= 0.98 * max(each)

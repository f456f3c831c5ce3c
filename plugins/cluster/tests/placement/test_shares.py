from __future__ import annotations

import dataclasses
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parallax_cluster.placement.cost_model import CostModel
from parallax_cluster.placement.pipeline import Pipeline
from parallax_cluster.placement.shares import (
    MOST_EXACT,
    UNEVEN,
    can_share_exactly,
    make_offers,
    rate_offers,
    rate_pipelines,
    share_offers,
    share_requests,
)
from parallax_core.contracts.placement import ClusterProfile, Objective, PlacementProblem, ServingGoal
from tests.support.clusters import make_model, make_node

NODES = (make_node("fast", 40, 100, 1000), make_node("slow", 40, 10, 100), make_node("slowest", 40, 0.1, 1))
PROBLEM = PlacementProblem(cluster=ClusterProfile(nodes=NODES), model=make_model(8))


def make_pipelines(goal: ServingGoal, *nodes: int, kv: int = 4096) -> list[Pipeline]:
    costs = CostModel(dataclasses.replace(PROBLEM, model=make_model(8, kv=kv), goal=goal))
    return [Pipeline(costs, (node,), (0, 8)) for node in nodes]


@pytest.mark.parametrize("concurrency", [1, 10])
def test_division_is_exact_up_to_a_bound_and_at_it(concurrency: int) -> None:
    most = MOST_EXACT // concurrency**2
    assert most * concurrency**2 == MOST_EXACT
    assert can_share_exactly(most, concurrency)
    assert not can_share_exactly(most + 1, concurrency)


def test_each_of_many_pipelines_gets_its_part_of_many_requests() -> None:
    goal = ServingGoal(concurrency=2000)
    shares = share_requests(make_pipelines(goal, *[0] * 200, *[1] * 200), goal)
    assert sum(shares) == 2000
    assert min(shares[:200]) >= 1
    total = sum(pipeline.value(each) for pipeline, each in zip(make_pipelines(goal, *[0] * 200), shares, strict=False))
    assert total > sum(pipeline.value(1) for pipeline in make_pipelines(goal, *[0] * 200))


def test_requests_go_where_they_add_most_unless_that_is_uneven_for_little() -> None:
    goal = ServingGoal(concurrency=100)
    pipelines = make_pipelines(goal, 0, 1)
    assert share_requests(pipelines, ServingGoal(concurrency=1)) == [1, 0]
    fast, slow = share_requests(pipelines, goal)
    assert fast + slow == 100
    best = max(pipelines[0].value(number) + pipelines[1].value(100 - number) for number in range(101))
    assert pipelines[0].value(fast) + pipelines[1].value(slow) >= best / (1 + UNEVEN)


@pytest.mark.parametrize("concurrency", [1, 7, 8, 100])
def test_pipelines_of_a_kind_get_the_same_or_one_more(concurrency: int) -> None:
    goal = ServingGoal(concurrency=concurrency)
    shares = share_requests(make_pipelines(goal, *[0] * 4), goal)
    assert sum(shares) == concurrency
    assert max(shares) - min(shares) <= 1


def test_no_request_would_be_answered_earlier_elsewhere() -> None:
    """Of two pipelines as fast for a few requests, where no other division is much better."""
    goal = ServingGoal(concurrency=12)
    pipelines = make_pipelines(goal, 0, 1)
    fast, slow = share_requests(pipelines, goal)
    assert fast > slow
    assert not slow or pipelines[1].measure(slow).request_s <= pipelines[0].measure(fast + 1).request_s


@pytest.mark.parametrize("concurrency", [4, 100])
def test_requests_that_would_make_all_wait_longer_are_left_out(concurrency: int) -> None:
    goal = ServingGoal(concurrency=concurrency, objective="latency")
    shares = share_requests(make_pipelines(goal, 0, 2, kv=2**21), goal)
    assert shares[0] > 0
    assert shares[1] == 0
    assert sum(shares) < concurrency


@settings(deadline=None, max_examples=10)
@given(st.integers(1, 6), st.sampled_from(["throughput", "latency"]), st.sampled_from([4096, 2**21, 2**22]))
def test_exact_division_is_the_best_of_all(concurrency: int, objective: Objective, kv: int) -> None:
    goal = ServingGoal(concurrency=concurrency, objective=objective)
    pipelines = make_pipelines(goal, 0, 1, kv=kv)
    best = (0.0, 0.0)
    for numbers in product(range(concurrency + 1), repeat=2):
        fits = all(number <= each.max_requests for number, each in zip(numbers, pipelines, strict=True))
        if fits and 0 < sum(numbers) <= concurrency:
            pairs = list(zip(numbers, pipelines, strict=True))
            offers = [make_offers([each], range(concurrency + 1))[number] for number, each in pairs]
            score = rate_offers(offers, goal)
            best = max(best, score) if best[0] else score
    assert rate_pipelines(pipelines, goal) == pytest.approx(best)


def test_offer_is_of_the_pipeline_that_is_best_for_its_requests() -> None:
    goal = ServingGoal(concurrency=8)
    fast, slow = make_pipelines(goal, 0, 1, kv=2**21)
    offers = make_offers([slow, fast], [1, 2, 3, 5, 8])
    assert [offer.pipeline for offer in offers[1:]] == [fast] * (len(offers) - 1)
    assert {0, fast.max_requests} <= {offer.number for offer in offers}
    assert [offer.number for offer in share_offers([offers, offers], ServingGoal(concurrency=2))] == [1, 1]

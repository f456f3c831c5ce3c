from __future__ import annotations

import dataclasses
from typing import Any, cast

import pytest

from parallax_cluster.placement.estimate import PlacementEstimator
from parallax_core.contracts.placement import (
    ClusterProfile,
    LinkProfile,
    PlacedStage,
    Placement,
    PlacementProblem,
    Resource,
    ServingGoal,
)
from parallax_core.contracts.stage import LayerRange
from tests.support.clusters import make_model, make_node

NODES = (make_node("fast", 40, 100, 1000), make_node("slow", 40, 10, 100), make_node("small", 5))
PROBLEM = PlacementProblem(cluster=ClusterProfile(nodes=NODES), model=make_model(8))


def stages(*given: tuple[str, int, int]) -> tuple[PlacedStage, ...]:
    return tuple(PlacedStage(node, LayerRange(start, stop)) for node, start, stop in given)


@pytest.mark.parametrize(
    ("pipelines", "message"),
    [
        ([stages(("nobody", 0, 8))], "there is no node 'nobody'"),
        ([stages(("fast", 1, 8))], "node 'fast' has layers 1 to 8 after 0"),
        ([stages(("fast", 0, 4), ("slow", 5, 8))], "node 'slow' has layers 5 to 8 after 4"),
        ([stages(("fast", 0, 4), ("slow", 4, 4))], "node 'slow' has layers 4 to 4"),
        ([stages(("fast", 0, 7))], "a pipeline ends at layer 7, and the model has 8 layers"),
        ([()], "ends at layer 0"),
        ([stages(("fast", 0, 8)), stages(("fast", 0, 8))], "node 'fast' has more than one stage"),
        ([stages(("fast", 0, 2), ("small", 2, 8))], "node 'small' has too little memory"),
    ],
)
def test_invalid_placement_is_refused_by_name(pipelines: list[tuple[PlacedStage, ...]], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PlacementEstimator(PROBLEM).estimate(Placement(tuple(pipelines)))


def test_requests_that_do_not_fit_are_left_out() -> None:
    problem = dataclasses.replace(PROBLEM, model=make_model(8, kv=2**19), goal=ServingGoal(concurrency=500))
    estimate = PlacementEstimator(problem).estimate(Placement((stages(("fast", 0, 8)),)))
    assert estimate.num_requests == estimate.pipelines[0].max_requests == int(32e9 // (768 * 8 * 2**19 / 0.5))
    assert (estimate.pipelines[0].limit, estimate.pipelines[0].limit_at) == ("memory", "fast")


@pytest.mark.parametrize(
    ("goal", "link", "limit", "where"),
    [
        (ServingGoal(concurrency=64, prompt_tokens=10), (0.001, 1e9), "bandwidth", "slow"),
        (ServingGoal(concurrency=64, prompt_tokens=10**5), (0.001, 1e9), "compute", "slow"),
        (ServingGoal(concurrency=64), (0.001, 1e5), "link", "fast - slow"),
        (ServingGoal(concurrency=1), (1.0, 1e9), "latency", "fast - slow"),
        (ServingGoal(concurrency=1), (0.0, 1e4), "link", "fast - slow"),
        (ServingGoal(concurrency=1, prompt_tokens=10), (0.0, 1e9), "bandwidth", "slow"),
        (ServingGoal(concurrency=2, prompt_tokens=10), (0.0, 1e9), "concurrency", ""),
        (ServingGoal(concurrency=64, prompt_tokens=10, max_token_s=0.06), (0.001, 1e9), "limits", ""),
    ],
)
def test_limit_is_named(goal: ServingGoal, link: tuple[float, float], limit: Resource, where: str) -> None:
    default = LinkProfile(ends=("", ""), round_trip_s=link[0], bandwidth=link[1])
    cluster = ClusterProfile(nodes=NODES, default_link=default)
    problem = PlacementProblem(cluster=cluster, model=make_model(8, kv=16), goal=goal)
    placement = Placement((stages(("fast", 0, 4), ("slow", 4, 8)),))
    [found] = PlacementEstimator(problem).estimate(placement).pipelines
    assert (found.limit, found.limit_at) == (limit, where)


def test_overhead_of_a_slow_start_of_kernels_is_named() -> None:
    node = dataclasses.replace(NODES[0], device=dataclasses.replace(NODES[0].device, layer_s=0.01))
    problem = PlacementProblem(cluster=ClusterProfile(nodes=(node,)), model=make_model(8))
    [found] = PlacementEstimator(problem).estimate(Placement((stages(("fast", 0, 8)),))).pipelines
    assert (found.limit, found.limit_at) == ("overhead", "fast")
    assert found.busy == pytest.approx([1.0])


def test_pipeline_without_requests_adds_nothing() -> None:
    problem = dataclasses.replace(PROBLEM, goal=ServingGoal(concurrency=1))
    estimate = PlacementEstimator(problem).estimate(Placement((stages(("slow", 0, 8)), stages(("fast", 0, 8)))))
    assert [each.num_requests for each in estimate.pipelines] == [0, 1]
    assert estimate.tokens_per_s == estimate.pipelines[1].tokens_per_s
    assert estimate.pipelines[0].tokens_per_s == 0


@pytest.mark.parametrize("field", ["prompt_tokens", "output_tokens", "concurrency", "max_ttft_s", "memory_fraction"])
def test_goal_without_a_load_is_refused(field: str) -> None:
    with pytest.raises(ValueError, match=f"{field} is 0"):
        dataclasses.replace(ServingGoal(), **cast("Any", {field: 0}))


@pytest.mark.parametrize("concurrency", [2, 500])
def test_response_counts_the_waiting_of_requests_that_are_not_served_at_once(concurrency: int) -> None:
    goal = ServingGoal(concurrency=concurrency, objective="latency")
    problem = dataclasses.replace(PROBLEM, model=make_model(8, kv=2**19), goal=goal)
    estimate = PlacementEstimator(problem).estimate(Placement((stages(("fast", 0, 8)),)))
    assert estimate.response_s == pytest.approx(estimate.request_s * concurrency / estimate.num_requests)


def test_pipeline_over_a_link_that_does_not_exist_is_refused_and_back_is_not() -> None:
    cluster = dataclasses.replace(PROBLEM.cluster, unreachable=frozenset({(NODES[0].name, NODES[1].name)}))
    estimator = PlacementEstimator(dataclasses.replace(PROBLEM, cluster=cluster))
    one, other = NODES[0].name, NODES[1].name
    with pytest.raises(ValueError, match=f"node {one!r} does not reach node {other!r}"):
        estimator.estimate(Placement((stages((one, 0, 4), (other, 4, 8)),)))
    assert estimator.estimate(Placement((stages((other, 0, 4), (one, 4, 8)),))).tokens_per_s > 0


def test_pipeline_without_requests_is_described_as_for_one() -> None:
    problem = dataclasses.replace(PROBLEM, goal=ServingGoal(concurrency=1))
    busy, spare = stages(("fast", 0, 8)), stages(("slow", 0, 8))
    both = PlacementEstimator(problem).estimate(Placement((busy, spare)))
    alone = PlacementEstimator(problem).estimate(Placement((spare,)))
    assert [each.num_requests for each in both.pipelines] == [1, 0]
    assert both.pipelines[1].request_s == alone.pipelines[0].request_s
    assert (both.pipelines[1].tokens_per_s, set(both.pipelines[1].busy)) == (0.0, {0.0})
    assert (both.num_requests, both.request_s) == (1, both.pipelines[0].request_s)

"""Pipelines that share nodes where links are the limit."""

from __future__ import annotations

import dataclasses
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parallax_cluster.placement.cost_model import CostModel
from parallax_cluster.placement.estimate import PlacementEstimator
from parallax_cluster.placement.lease_plan import MOST_LEASES, MOST_NODES, plan_leases
from parallax_cluster.placement.leased import has_leases
from parallax_cluster.placement.policy import WORTH_SHARING, SearchPlacement
from parallax_core.contracts.placement import (
    ClusterProfile,
    LayerDemand,
    LinkProfile,
    ModelDemand,
    Placement,
    PlacementProblem,
    ServingGoal,
)
from tests.support.clusters import cut_links, make_node, make_problem

LAYER = LayerDemand(weights=10**9, read=10**9, flops=2 * 10**9, kv=4096)
MODEL = ModelDemand(layers=(LAYER,) * 30, hidden=8192)
GOAL = ServingGoal(prompt_tokens=512, output_tokens=64, concurrency=64)
SLOW = LinkProfile(ends=("", ""), round_trip_s=0.02, bandwidth=2e6)
"""Carries fewer hidden states than the nodes of `HUB` compute."""
HUB = (make_node("a", 24, 100, 1000), make_node("b", 20, 50, 1000), make_node("c", 20, 50, 1000))
"""Any two of them hold the model, and none alone."""


def make_hub(*, leases: bool = True, num_nodes: int = 3, link: LinkProfile = SLOW) -> PlacementProblem:
    extra = [make_node(f"d{number:02d}", 20, 50, 1000) for number in range(num_nodes - len(HUB))]
    nodes = tuple(dataclasses.replace(node, leases=leases) for node in (*HUB, *extra)[:num_nodes])
    return PlacementProblem(cluster=ClusterProfile(nodes=nodes, default_link=link), model=MODEL, goal=GOAL)


def with_goal(problem: PlacementProblem, goal: ServingGoal) -> PlacementProblem:
    return dataclasses.replace(problem, goal=goal)


def with_leases(problem: PlacementProblem, *, leases: bool = True) -> PlacementProblem:
    nodes = tuple(dataclasses.replace(node, leases=leases) for node in problem.cluster.nodes)
    return dataclasses.replace(problem, cluster=dataclasses.replace(problem.cluster, nodes=nodes))


def plan(problem: PlacementProblem) -> list[Placement]:
    return [placement for placement, _ in plan_leases(CostModel(problem), PlacementEstimator(problem))]


def place(problem: PlacementProblem, effort: int = 5000) -> Placement:
    return SearchPlacement(effort=effort).place(problem, PlacementEstimator(problem))


def rate(problem: PlacementProblem, placement: Placement) -> float:
    return PlacementEstimator(problem).estimate(placement).tokens_per_s


def test_two_slow_links_are_used_through_one_node() -> None:
    shared, alone = make_hub(), make_hub(leases=False)
    placement, other = place(shared), place(alone)
    assert not has_leases(other)
    assert rate(shared, placement) > 1.2 * rate(alone, other)
    leases = [stage for stages in placement.pipelines for stage in stages if stage.lease is not None]
    assert len({stage.node for stage in leases}) == 1
    assert len(leases) == len(placement.pipelines) == 2
    assert sum(stage.lease.memory_share for stage in leases if stage.lease) == pytest.approx(1.0)
    assert {stage.node for stages in placement.pipelines for stage in stages} == {node.name for node in HUB}


def test_fast_links_need_no_sharing() -> None:
    fast = LinkProfile(ends=("", ""), round_trip_s=0.0002, bandwidth=1e9)
    problem = make_hub(link=fast)
    assert rate(problem, place(problem)) >= rate(problem, place(with_leases(problem, leases=False)))


@pytest.mark.parametrize(
    "problem",
    [
        make_hub(leases=False),
        make_hub(num_nodes=2),
        make_hub(num_nodes=MOST_NODES + 1),
        with_goal(make_hub(), dataclasses.replace(GOAL, objective="latency")),
        with_goal(make_hub(), dataclasses.replace(GOAL, concurrency=1)),
    ],
    ids=["no leases", "two nodes", "many nodes", "latency", "one request"],
)
def test_nothing_is_shared_where_that_does_not_help_or_cannot_be_done(problem: PlacementProblem) -> None:
    assert plan(problem) == []


def test_only_nodes_with_leases_are_in_a_shared_plan() -> None:
    problem = make_hub(num_nodes=5)
    nodes = (*problem.cluster.nodes[:4], dataclasses.replace(problem.cluster.nodes[4], leases=False))
    problem = dataclasses.replace(problem, cluster=dataclasses.replace(problem.cluster, nodes=nodes))
    found = plan(problem)
    assert found
    names = {stage.node for placement in found for stages in placement.pipelines for stage in stages}
    assert names <= {node.name for node in nodes[:4]}


@settings(deadline=None, max_examples=6)
@given(st.integers(0, 10**6), st.floats(5.5, 8.5))
def test_every_plan_is_valid_and_shares_nodes(seed: int, bandwidth: float) -> None:
    problem = with_leases(make_problem(seed, 8))
    link = LinkProfile(ends=("", ""), round_trip_s=0.01, bandwidth=10**bandwidth)
    problem = dataclasses.replace(problem, cluster=ClusterProfile(nodes=problem.cluster.nodes, default_link=link))
    for placement in plan(problem):
        assert has_leases(placement)
        estimate = PlacementEstimator(problem).estimate(placement)
        assert estimate.tokens_per_s > 0
        counts: dict[str, list[int]] = {}
        for stage in (stage for stages in placement.pipelines for stage in stages):
            counts.setdefault(stage.node, []).append(stage.lease.number if stage.lease else 0)
        assert all(sorted(numbers) == list(range(len(numbers))) for numbers in counts.values())
        assert all(len(numbers) <= MOST_LEASES for numbers in counts.values())


@settings(deadline=None, max_examples=3)
@given(st.integers(0, 10**6))
def test_placement_with_sharing_is_never_worse_and_shares_only_for_a_gain(seed: int) -> None:
    random = Random(seed)
    link = dataclasses.replace(SLOW, bandwidth=10 ** random.uniform(6, 8))
    problem = make_hub(num_nodes=random.randint(3, 5), link=link)
    placement, other = place(problem, 300), place(with_leases(problem, leases=False), 300)
    gain = rate(problem, placement) / rate(problem, other)
    assert gain >= 1 - 1e-9
    assert not has_leases(placement) or gain > 1 + WORTH_SHARING / 2


@pytest.mark.parametrize("num_nodes", [3, pytest.param(5, marks=pytest.mark.nightly)])
def test_same_problem_gives_the_same_plan_and_it_stays(num_nodes: int) -> None:
    problem = make_hub(num_nodes=num_nodes)
    placement = place(problem, 1000)
    assert has_leases(placement) == (num_nodes == len(HUB))
    assert place(problem, 1000) == placement
    assert place(dataclasses.replace(problem, current=placement), 1000) == placement


def test_plan_ends_when_its_node_has_no_leases_any_more() -> None:
    problem = make_hub()
    current = place(problem)
    after = dataclasses.replace(with_leases(problem, leases=False), current=current)
    placement = place(after)
    assert placement.pipelines
    assert not has_leases(placement)


@settings(deadline=None, max_examples=3)
@given(st.integers(0, 10**6), st.sampled_from([0.2, 0.5, 0.8]))
def test_shared_pipelines_lead_over_links_that_exist(seed: int, share: float) -> None:
    problem = cut_links(with_leases(make_hub(num_nodes=4)), seed, share)
    for placement in plan(problem):
        hops = {hop for stages in placement.pipelines for hop in pairwise(stage.node for stage in stages)}
        assert hops.isdisjoint(problem.cluster.unreachable)


def test_nodes_are_shared_in_the_one_direction_in_which_they_reach_each_other() -> None:
    """A machine behind a router reaches two others, which do not reach it: it has the first layers of both."""
    problem = make_hub()
    gaps = frozenset({("b", "a"), ("c", "a"), ("b", "c"), ("c", "b")})
    problem = dataclasses.replace(problem, cluster=dataclasses.replace(problem.cluster, unreachable=gaps))
    placement = place(problem)
    assert {tuple(stage.node for stage in stages) for stages in placement.pipelines} == {("a", "b"), ("a", "c")}
    assert has_leases(placement)

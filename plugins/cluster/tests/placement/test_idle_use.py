from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from parallax_cluster.placement.cost_model import CostModel
from parallax_cluster.placement.estimate import PlacementEstimator
from parallax_cluster.placement.idle_use import IdleUses
from parallax_cluster.placement.pipeline import Pipeline
from parallax_cluster.placement.policy import SearchPlacement
from parallax_cluster.placement.shares import is_better, rate_pipelines
from parallax_cluster.placement.stage_table import Effort
from parallax_core.contracts.placement import ClusterProfile, LinkProfile, NodeProfile, PlacementProblem, ServingGoal
from tests.support.clusters import make_model, make_node, make_problem

GOAL = ServingGoal(concurrency=8)


def make_costs(*nodes: NodeProfile) -> CostModel:
    return CostModel(PlacementProblem(cluster=ClusterProfile(nodes=nodes), model=make_model(8, 1.0), goal=GOAL))


def test_idle_node_that_holds_the_model_becomes_a_pipeline() -> None:
    costs = make_costs(make_node("a", 40), make_node("b", 40))
    adopted = IdleUses(costs, Effort(1000)).adopt([Pipeline(costs, (0,), (0, 8))])
    assert sorted(pipeline.order for pipeline in adopted) == [(0,), (1,)]


def test_idle_node_joins_a_pipeline_that_is_short_of_memory() -> None:
    costs = make_costs(make_node("a", 4.03), make_node("b", 4.03), make_node("c", 5))
    tight = Pipeline(costs, (0, 1), (0, 4, 8))
    [adopted] = IdleUses(costs, Effort(1000)).adopt([tight])
    assert sorted(adopted.order) == [0, 1, 2]
    assert rate_pipelines([adopted], GOAL) > rate_pipelines([tight], GOAL)


def test_node_that_would_slow_all_others_stays_idle() -> None:
    costs = make_costs(make_node("a", 40), make_node("slow", 2, tflops=0.01, bandwidth_gb_s=0.1))
    uses, alone = IdleUses(costs, Effort(1000)), [Pipeline(costs, (0,), (0, 8))]
    assert [pipeline.order for pipeline in uses.adopt(alone)] == [(0,)]
    found = uses.find_best(1, alone)
    assert found
    assert found[0] < rate_pipelines(alone, GOAL)


def test_node_without_memory_has_no_use() -> None:
    costs = make_costs(make_node("a", 40), make_node("pi", 0.1))
    assert IdleUses(costs, Effort(1000)).find_best(1, [Pipeline(costs, (0,), (0, 8))]) is None


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 10**6))
def test_no_idle_node_of_a_plan_would_help(seed: int) -> None:
    problem = make_problem(seed, 4)
    estimator = PlacementEstimator(problem)
    pipelines = estimator.read_pipelines(SearchPlacement(effort=300).place(problem, estimator))
    used = {node for pipeline in pipelines for node in pipeline.order}
    if len(pipelines) == 1 and len(used) == 1:
        return  # it may be preferred to a pipeline that is hardly better
    uses, now = IdleUses(estimator.costs, Effort(10**6)), rate_pipelines(pipelines, problem.goal)
    for node in set(range(len(problem.cluster.nodes))) - used:
        found = uses.find_best(node, pipelines)
        assert not (pipelines and found and is_better(found[0], now))


def test_quick_search_tries_a_node_at_the_nearest_places_only() -> None:
    sites = ["home", "home", "home", "office", "office", "office", "office"]
    nodes = tuple(make_node(f"n{rank}", 4, site=site) for rank, site in enumerate(sites))
    near = LinkProfile(ends=("office", "office"), round_trip_s=0.001, bandwidth=1e9)
    far = LinkProfile(ends=("", ""), round_trip_s=0.05, bandwidth=1e9)
    cluster = ClusterProfile(nodes=nodes, links=(near,), default_link=far)
    costs = CostModel(PlacementProblem(cluster=cluster, model=make_model(12, 1.0), goal=GOAL))
    old = Pipeline(costs, (0, 1, 2, 3, 4, 5), (0, 2, 4, 6, 8, 10, 12))
    thorough, quick = Effort(10**6), Effort(10**6)
    best = IdleUses(costs, thorough).find_best(6, [old])
    found = IdleUses(costs, quick, is_quick=True).find_best(6, [old])
    assert best
    assert found
    assert found[0][0] >= 0.98 * best[0][0]
    assert 10**6 - quick.left < 0.6 * (10**6 - thorough.left)


def test_idle_node_is_tried_where_it_reaches_the_next_and_is_reached() -> None:
    """The new node reaches nobody, so that it can only be the last; quick or not."""
    nodes = [make_node("a", 3), make_node("b", 5.5), make_node("new", 4)]
    cluster = ClusterProfile(nodes=tuple(nodes), unreachable=frozenset({("new", "a"), ("new", "b"), ("b", "a")}))
    costs = CostModel(PlacementProblem(cluster=cluster, model=make_model(8, 1.0), goal=GOAL))
    pipeline = Pipeline(costs, (0, 1), (0, 3, 8))
    for is_quick in (False, True):
        found = IdleUses(costs, Effort(1000), is_quick=is_quick).find_best(2, [pipeline])
        assert found is not None
        assert [each.order for each in found[1]] == [(0, 1, 2)]

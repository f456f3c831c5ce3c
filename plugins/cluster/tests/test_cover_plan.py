from __future__ import annotations

from dataclasses import replace

from parallax_cluster.cover_plan import CoverPlanner
from parallax_cluster.layer_plan import LayerPlan
from parallax_core.contracts.placement import ClusterProfile, LinkProfile, NodeProfile
from parallax_core.contracts.stage import LayerRange
from tests.support.clusters import make_model, make_node

PLANNER = CoverPlanner(model=make_model(6, 1.0))


def fix(name: str, start: int, stop: int, room: float = 9) -> NodeProfile:
    return replace(make_node(name, room), fixed_layers=LayerRange(start, stop))


def make_cluster(*nodes: NodeProfile, links: tuple[LinkProfile, ...] = ()) -> ClusterProfile:
    return ClusterProfile(nodes=nodes, links=links, head="head")


def list_nodes(plan: LayerPlan) -> dict[int, list[str]]:
    return {rank: [stage.node for stage in stages] for rank, stages in plan.pipelines.items()}


def test_nodes_form_as_many_pipelines_as_they_can_and_the_rest_are_spares() -> None:
    nodes = [fix("a", 0, 3), fix("b", 3, 6), fix("c", 0, 6), fix("d", 3, 6), fix("e", 1, 3), make_node("f", 9)]
    plan = PLANNER.plan(make_cluster(*nodes), {})
    assert list_nodes(plan) == {0: ["c"], 1: ["a", "b"]}
    assert plan.idle == {
        "d": "it is a spare: other nodes have its layers 3-6",
        "e": "no pipeline of all layers leads through its layers 1-3",
    }
    assert len(plan.estimate.pipelines) == 2
    assert plan.predict(1) is not None
    assert set(plan.loads) == {"a", "b", "c"}
    assert not plan.waits_for


def test_spare_takes_the_place_of_a_lost_node_and_nobody_else_moves() -> None:
    nodes = [fix("a", 0, 3), fix("b", 3, 6), fix("c", 0, 3), fix("d", 3, 6), fix("e", 3, 6)]
    first = PLANNER.plan(make_cluster(*nodes), {})
    assert list_nodes(first) == {0: ["a", "b"], 1: ["c", "d"]}
    second = PLANNER.plan(make_cluster(*(node for node in nodes if node.name != "d")), first.pipelines)
    assert list_nodes(second) == {0: ["a", "b"], 1: ["c", "e"]}
    assert set(second.loads) == {"e"}


def test_pipelines_stay_when_a_better_one_is_possible() -> None:
    first = PLANNER.plan(make_cluster(fix("a", 0, 3), fix("b", 3, 6)), {})
    nodes = fix("a", 0, 3), fix("b", 3, 6), fix("near", 3, 6)
    links = LinkProfile(ends=("a", "near"), round_trip_s=1e-6, bandwidth=1e9)
    assert list_nodes(PLANNER.plan(make_cluster(*nodes, links=(links,)), first.pipelines)) == {0: ["a", "b"]}
    assert list_nodes(PLANNER.plan(make_cluster(*nodes, links=(links,)), {})) == {0: ["a", "near"]}


def test_node_that_came_back_with_other_layers_is_in_no_pipeline_of_before() -> None:
    first = PLANNER.plan(make_cluster(fix("a", 0, 3), fix("b", 3, 6)), {})
    plan = PLANNER.plan(make_cluster(fix("a", 0, 2), fix("b", 3, 6)), first.pipelines, has_begun=True)
    assert not plan.pipelines
    assert plan.waits_for == "no node goes on from layer 2 of 6: nodes have 0-2, 3-6"


def test_nothing_is_planned_without_nodes() -> None:
    plan = PLANNER.plan(make_cluster(), {})
    assert (plan.pipelines, plan.waits_for) == ({}, "no node has announced layers of the model, which has 6")


def test_user_decides_what_fits_into_the_memory_of_a_node() -> None:
    plan = PLANNER.plan(make_cluster(fix("a", 0, 3, room=0.1), fix("b", 3, 6)), {})
    assert list_nodes(plan) == {0: ["a", "b"]}
    assert plan.estimate.tokens_per_s > 0


def test_pipeline_whose_link_is_gone_is_planned_over_another_node() -> None:
    cluster = make_cluster(fix("a", 0, 3), fix("b", 3, 6), fix("c", 3, 6))
    first = PLANNER.plan(cluster, {})
    assert list_nodes(first) == {0: ["a", "b"]}
    second = PLANNER.plan(replace(cluster, unreachable=frozenset({("a", "b")})), first.pipelines)
    assert list_nodes(second) == {0: ["a", "c"]}
    third = PLANNER.plan(replace(cluster, unreachable=frozenset({("a", "b"), ("a", "c")})), first.pipelines)
    assert third.waits_for.endswith("but a stage has to reach the next one: a does not reach b, c")

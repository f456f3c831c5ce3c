from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parallax_cluster.layer_plan import (
    LayerPlan,
    LayerPlanner,
    Stages,
    find_intact,
    give_ranks,
    list_unreachable,
    name_member,
)
from parallax_cluster.placement.policy import SearchPlacement
from parallax_core.contracts.placement import (
    ClusterProfile,
    Estimator,
    PlacedStage,
    Placement,
    PlacementProblem,
    ServingGoal,
    StageLease,
)
from parallax_core.contracts.stage import LayerRange
from tests.support.clusters import make_model, make_node

PLANNER = LayerPlanner(policy=SearchPlacement(), model=make_model(6, 1.0), goal=ServingGoal(concurrency=64))


def make_cluster(**rooms: float) -> ClusterProfile:
    """Return nodes by name, with memory for some layers of the model."""
    return ClusterProfile(nodes=tuple(make_node(name, room) for name, room in rooms.items()))


def pipeline(*nodes: str) -> Stages:
    """Return a pipeline of the model over nodes, with equal shares."""
    share = 6 // len(nodes)
    return tuple(PlacedStage(name, LayerRange(n * share, (n + 1) * share)) for n, name in enumerate(nodes))


def list_nodes(plan: LayerPlan) -> dict[int, set[str]]:
    return {rank: {stage.node for stage in stages} for rank, stages in plan.pipelines.items()}


def test_model_that_does_not_fit_says_what_is_missing() -> None:
    plan = PLANNER.plan(make_cluster(a=3), {})
    assert not plan.pipelines
    assert plan.waits_for.startswith("the model needs 5.6 GiB for its weights and ")
    assert "and there is one node, with 2.8 GiB; layers " in plan.waits_for
    assert plan.idle == {"a": "all nodes together have too little memory for the model"}
    assert PLANNER.plan(make_cluster(), {}).waits_for.endswith("and no node has joined")


def test_nodes_are_waited_for_only_before_the_first_pipeline() -> None:
    planner = replace(PLANNER, min_nodes=2)
    plan = planner.plan(make_cluster(a=9), {})
    assert (plan.pipelines, plan.waits_for) == ({}, "1 of 2 nodes have joined, and it waits for all of them")
    assert list_nodes(planner.plan(make_cluster(a=9, b=9), {})) == {0: {"a"}, 1: {"b"}}
    assert list_nodes(planner.plan(make_cluster(a=9), {}, has_begun=True)) == {0: {"a"}}


def test_node_that_joins_forms_a_pipeline_and_moves_no_layer_of_the_others() -> None:
    first = PLANNER.plan(make_cluster(a=9), {})
    both = PLANNER.plan(make_cluster(a=9, b=9), first.pipelines)
    assert both.pipelines[0] == first.pipelines[0]
    assert list_nodes(both) == {0: {"a"}, 1: {"b"}}
    assert (both.movement.num_moved, both.movement.load_bytes) == (0, 6 * 10**9)
    assert both.estimate.tokens_per_s > first.estimate.tokens_per_s


def test_loss_breaks_one_pipeline_only() -> None:
    current = {0: pipeline("a", "b"), 1: pipeline("c")}
    plan = PLANNER.plan(make_cluster(a=4, b=4), current)
    assert plan.pipelines == {0: current[0]}
    again = PLANNER.plan(make_cluster(a=4, b=4, e=9), plan.pipelines)
    assert again.pipelines[0] == current[0]
    assert list_nodes(again)[1] == {"e"}


REST = "layers rest"


def test_pipelines_that_are_kept_change_for_no_better_plan() -> None:
    current = {0: pipeline("a", "b")}
    nodes = make_cluster(a=4, b=4, large=5.5)
    better = PLANNER.plan(nodes, current, has_begun=True)
    assert list_nodes(better) != {0: {"a", "b"}}
    plan = PLANNER.plan(nodes, current, has_begun=True, keeps=REST)
    assert (plan.pipelines, plan.idle) == (current, {"large": REST})
    assert plan.estimate.tokens_per_s < better.estimate.tokens_per_s
    assert (plan.movement.num_moved, plan.loads) == (0, {})


def test_other_nodes_form_pipelines_beside_those_that_are_kept() -> None:
    current = {0: pipeline("a", "b")}
    plan = PLANNER.plan(make_cluster(a=4, b=4, c=9, tiny=0.5), current, has_begun=True, keeps=REST)
    assert plan.pipelines[0] == current[0]
    assert list_nodes(plan) == {0: {"a", "b"}, 1: {"c"}}
    assert plan.idle == {"tiny": REST}
    assert len(plan.estimate.pipelines) == 2


def test_broken_pipelines_are_planned_anew_beside_those_that_are_kept() -> None:
    current = {0: pipeline("a", "b"), 1: pipeline("c", "gone")}
    plan = PLANNER.plan(make_cluster(a=4, b=4, c=4, d=4), current, has_begun=True, keeps=REST)
    assert plan.pipelines[0] == current[0]
    assert list_nodes(plan) == {0: {"a", "b"}, 1: {"c", "d"}}


def test_nothing_is_kept_if_no_pipeline_can_stay_as_it_is() -> None:
    for nodes in (make_cluster(a=4, c=4), make_cluster(a=1.2, b=9)):
        plan = PLANNER.plan(nodes, {0: pipeline("a", "b")}, has_begun=True, keeps=REST)
        assert plan.pipelines == PLANNER.plan(nodes, {0: pipeline("a", "b")}, has_begun=True).pipelines


def test_layers_that_nodes_still_have_in_memory_are_not_counted_as_loaded() -> None:
    cluster = make_cluster(a=4, b=4)
    first = PLANNER.plan(cluster, {})
    assert first.movement.load_bytes == sum(first.loads.values()) == 6 * 10**9
    [stages] = first.pipelines.values()
    held = {stage.node: stage.layers for stage in stages}
    nodes = tuple(replace(node, loaded_layers=held[node.name]) for node in cluster.nodes)
    again = PLANNER.plan(replace(cluster, nodes=nodes), {}, has_begun=True)
    assert again.pipelines == first.pipelines
    assert (again.movement.load_bytes, again.loads) == (0, {})


def test_node_that_does_not_help_is_idle_and_has_a_reason() -> None:
    plan = PLANNER.plan(make_cluster(a=9, tiny=0.5), {})
    assert list_nodes(plan) == {0: {"a"}}
    assert "too small for a layer" in plan.idle["tiny"]


def test_nodes_that_are_left_keep_what_they_have_loaded() -> None:
    lost = (
        PlacedStage("c", LayerRange(0, 2)),
        PlacedStage("gone", LayerRange(2, 4)),
        PlacedStage("a", LayerRange(4, 6)),
    )
    plan = PLANNER.plan(make_cluster(a=4, c=4), {0: lost})
    [stages] = plan.pipelines.values()
    assert [stage.node for stage in stages] == ["c", "a"]
    assert plan.movement.load_bytes == 2 * 10**9


def test_nodes_exchange_no_layers_for_which_they_have_no_room() -> None:
    lost = (PlacedStage("small", LayerRange(0, 3)), PlacedStage("gone", LayerRange(3, 6)))
    plan = PLANNER.plan(make_cluster(large=5.5, small=1.5), {0: lost})
    [stages] = plan.pipelines.values()
    assert {stage.node: len(stage.layers) for stage in stages} == {"large": 5, "small": 1}


def test_plan_predicts_each_pipeline() -> None:
    plan = PLANNER.plan(make_cluster(a=9, b=9), {})
    assert sum(found.tokens_per_s for rank in (0, 1) if (found := plan.predict(rank))) == plan.estimate.tokens_per_s
    assert plan.predict(2) is None


@pytest.mark.parametrize(
    ("current", "pipelines", "ranks"),
    [
        ({}, ["a", "b"], [0, 1]),
        ({0: "a", 1: "b"}, ["b", "a"], [1, 0]),
        ({0: "ab", 1: "cd"}, ["cde"], [0]),
        ({0: "ab", 1: "cd", 2: "ef"}, ["ad", "cb"], [0, 1]),
        ({0: "x", 3: "y"}, ["a", "y"], [0, 3]),
        ({0: "x"}, ["a", "b", "c"], [0, 1, 2]),
    ],
)
def test_pipelines_keep_the_ranks_of_those_whose_nodes_they_have(
    current: dict[int, str], pipelines: list[str], ranks: list[int]
) -> None:
    before = {rank: pipeline(*nodes) for rank, nodes in current.items()}
    assert give_ranks(before, [pipeline(*nodes) for nodes in pipelines]) == ranks


NODES = st.lists(st.sampled_from("abcdef"), unique=True, max_size=6)


@given(st.lists(st.integers(0, 6), unique=True), NODES, NODES)
def test_ranks_are_all_different_and_one_is_0(ranks: list[int], before: list[str], after: list[str]) -> None:
    current = {rank: pipeline(node) for rank, node in zip(ranks, before, strict=False)}
    found = give_ranks(current, [pipeline(node) for node in after])
    assert len(set(found)) == len(after)
    assert not after or 0 in found
    for node, rank in zip(after, found, strict=True):
        if rank and node in before[: len(ranks)]:
            assert current[rank] == pipeline(node) or found.count(0)


def test_intact_pipelines_have_all_their_nodes() -> None:
    pipelines = [pipeline("a", "b"), pipeline("c")]
    assert find_intact(pipelines, {"a", "c"}) == [pipeline("c")]
    assert find_intact(pipelines, {"a", "b", "c"}) == pipelines


def test_first_lease_of_a_node_joins_as_the_node_and_others_by_names_of_their_own() -> None:
    layers = LayerRange(0, 6)
    leases = [StageLease(number, layers, 0.5) for number in (0, 1, 12)]
    assert [name_member(PlacedStage("a/1", layers, lease)) for lease in leases] == ["a/1", "a/1~1", "a/1~12"]
    assert name_member(PlacedStage("a/1+2", layers)) == "a/1+2"


def test_plan_whose_pipelines_share_a_node_stays_and_loads_nothing_anew() -> None:
    cluster = make_cluster(hub=9, a=9, b=9)
    cluster = replace(cluster, nodes=tuple(replace(node, leases=True) for node in cluster.nodes))
    holds = LayerRange(0, 3)
    current = {
        rank: (PlacedStage("hub", holds, StageLease(rank, holds, 0.5)), PlacedStage(other, LayerRange(3, 6)))
        for rank, other in enumerate("ab")
    }

    class Same:
        """Keeps the placement that serves."""

        def place(self, problem: PlacementProblem, estimator: Estimator) -> Placement:
            del estimator
            return problem.current or Placement()

    plan = replace(PLANNER, policy=Same()).plan(cluster, current)
    assert plan.pipelines == current
    assert (plan.loads, plan.movement.num_moved, plan.idle) == ({}, 0, {})


def test_pipeline_is_planned_in_the_other_direction_where_a_link_is_gone() -> None:
    cluster = make_cluster(a=4, b=4)
    first = PLANNER.plan(cluster, {})
    one, other = (stage.node for stage in first.pipelines[0])
    second = PLANNER.plan(replace(cluster, unreachable=frozenset({(one, other)})), first.pipelines)
    assert [stage.node for stage in second.pipelines[0]] == [other, one]


def test_nodes_that_do_not_reach_each_other_are_named() -> None:
    cluster = replace(make_cluster(a=4, b=4, c=0.5), unreachable=frozenset({("a", "b"), ("b", "a"), ("a", "c")}))
    plan = PLANNER.plan(cluster, {})
    assert not plan.pipelines
    assert plan.waits_for == (
        "the nodes together could hold the model, but a stage has to reach the next one: "
        "a does not reach b, c; b does not reach a"
    )
    assert plan.idle["a"] == "it does not reach b, c and it is not reached by b"
    too_small = replace(make_cluster(a=2, b=2), unreachable=frozenset({("a", "b")}))
    assert PLANNER.plan(too_small, {}).waits_for.startswith("the model needs 5.6 GiB")


def test_model_stays_on_one_node_that_another_one_cannot_reach() -> None:
    first = PLANNER.plan(make_cluster(a=6.5), {})
    both = replace(make_cluster(a=6.5, b=5.5), unreachable=frozenset({("a", "b"), ("b", "a")}))
    assert PLANNER.plan(both, first.pipelines).pipelines == first.pipelines
    assert set(PLANNER.plan(make_cluster(a=6.5, b=5.5), {}).pipelines[0]) != set(first.pipelines[0])


def test_explanation_names_a_few_of_many_links() -> None:
    pairs = {(f"n{number:02d}", "x") for number in range(20)}
    told = list_unreachable(pairs)
    assert (len(told), told[0], told[-1]) == (9, "n00 does not reach x", "and 12 nodes more")


def test_pipeline_whose_link_is_gone_is_not_intact() -> None:
    pipelines = [pipeline("a", "b"), pipeline("c", "d"), pipeline("e")]
    assert find_intact(pipelines, set("abcde"), {("a", "b"), ("d", "c")}) == pipelines[1:]

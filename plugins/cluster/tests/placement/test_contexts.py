"""Nodes whose users limit the context: they get no layers for longer requests, and the plan says so."""

from __future__ import annotations

from dataclasses import replace

import pytest

from parallax_cluster.layer_plan import LayerPlan, LayerPlanner
from parallax_cluster.placement.policy import SearchPlacement
from parallax_core.contracts.placement import ClusterProfile, ServingGoal
from tests.support.clusters import make_model, make_node

GOAL = ServingGoal(prompt_tokens=300, output_tokens=212, concurrency=64)
NEEDED = 512


def plan(goal: ServingGoal = GOAL, **nodes: tuple[float, int]) -> LayerPlan:
    """Return the plan of a model of six layers, for nodes with memory for some of them, and their limits."""
    made = (replace(make_node(name, memory), max_context=limit) for name, (memory, limit) in nodes.items())
    planner = LayerPlanner(policy=SearchPlacement(), model=make_model(6, 1.0), goal=goal)
    return planner.plan(ClusterProfile(nodes=tuple(made)), {})


def list_nodes(found: LayerPlan) -> set[str]:
    return {stage.node for stages in found.pipelines.values() for stage in stages}


@pytest.mark.parametrize(("limit", "has_layers"), [(0, True), (NEEDED, True), (NEEDED - 1, False), (1, False)])
def test_node_has_layers_if_it_takes_the_planned_requests(limit: int, *, has_layers: bool) -> None:
    found = plan(a=(9, 0), b=(9, limit))
    assert list_nodes(found) == ({"a", "b"} if has_layers else {"a"})
    reason = f"it takes requests of up to {limit} tokens (max_context), and {NEEDED} are planned for"
    assert found.idle == ({} if has_layers else {"b": reason})
    assert found.waits_for == ""
    assert [node.name for node in found.cluster.nodes] == ["a", "b"]


def test_tokens_that_are_kept_for_a_request_count() -> None:
    goal = replace(GOAL, context_tokens=NEEDED + 1)
    assert list_nodes(plan(goal, a=(9, NEEDED + 1), b=(9, NEEDED))) == {"a"}


def test_model_waits_if_no_node_takes_its_requests() -> None:
    found = plan(a=(9, 511), b=(9, 100))
    assert not found.pipelines
    assert found.waits_for == (
        "the plan is for requests of 512 tokens (prompt_tokens and output_tokens), and 2 of 2 nodes take at most 511 "
        "(max_context)"
    )
    assert found.idle.keys() == {"a", "b"}


def test_what_is_missing_without_such_nodes_is_said_too() -> None:
    found = plan(a=(4, 0), b=(9, 511))
    assert not found.pipelines
    told, _, rest = found.waits_for.partition("; without them, ")
    assert told.endswith("and 1 of 2 nodes take at most 511 (max_context)")
    assert rest.startswith("the model needs ")
    assert "there is one node" in rest
    assert found.idle.keys() == {"a", "b"}

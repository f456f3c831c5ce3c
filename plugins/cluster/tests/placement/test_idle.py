from __future__ import annotations

import dataclasses

import pytest

from parallax_cluster.placement import idle
from parallax_cluster.placement.cost_model import CostModel
from parallax_cluster.placement.estimate import PlacementEstimator
from parallax_cluster.placement.idle import explain_idle, name_some
from parallax_cluster.placement.idle_use import IdleUses
from parallax_cluster.placement.pipeline import Pipeline
from parallax_cluster.placement.policy import SearchPlacement
from parallax_cluster.placement.stage_table import Effort
from parallax_core.contracts.placement import (
    ClusterProfile,
    LinkProfile,
    NodeProfile,
    Placement,
    PlacementProblem,
    ServingGoal,
)
from tests.support.clusters import make_model, make_node

GOAL = ServingGoal()
FAR = LinkProfile(ends=("far", ""), round_trip_s=0.5, bandwidth=1e6)


def explain(*nodes: NodeProfile, goal: ServingGoal = GOAL) -> dict[str, str]:
    problem = PlacementProblem(cluster=ClusterProfile(nodes=nodes, links=(FAR,)), model=make_model(), goal=goal)
    placement = SearchPlacement(effort=200).place(problem, PlacementEstimator(problem))
    return explain_idle(problem, placement)


def test_node_in_use_has_no_reason() -> None:
    assert explain(make_node("a", 40)) == {}


def test_node_without_memory_for_a_layer_is_explained() -> None:
    reasons = explain(make_node("a", 40), make_node("pi", 0.5))
    assert list(reasons) == ["pi"]
    assert "its memory of" in reasons["pi"]


def test_node_that_would_slow_the_others_is_explained_with_both_figures() -> None:
    reasons = explain(make_node("a", 40), make_node("far", 4, site="far"), goal=ServingGoal(concurrency=8))
    assert "with it there would be" in reasons["far"]
    assert "without it there are" in reasons["far"]


def test_nodes_that_are_too_small_together_are_explained() -> None:
    reasons = explain(make_node("a", 2), make_node("b", 2))
    assert set(reasons.values()) == {"all nodes together have too little memory for the model"}


def test_node_that_would_delay_requests_is_explained_in_seconds() -> None:
    goal = ServingGoal(concurrency=1, objective="latency")
    reasons = explain(make_node("a", 40), make_node("far", 4, site="far"), goal=goal)
    assert "a request would take" in reasons["far"]


def test_node_that_would_get_no_requests_is_explained() -> None:
    fast, slow = make_node("fast", 40), make_node("slow", 40, tflops=1, bandwidth_gb_s=10)
    goal = ServingGoal(concurrency=1)
    assert explain(fast, slow, goal=goal) == {
        "slow": "it would get none of the requests (at once: 1): others answer them sooner"
    }


def test_node_that_the_others_do_not_reach_is_explained() -> None:
    """Neither b nor c holds the model, and each of them does with a."""
    nodes = make_node("a", 6), make_node("b", 4), make_node("c", 3)
    gaps = frozenset({("c", "a"), ("a", "c"), ("c", "b"), ("b", "c")})
    problem = PlacementProblem(cluster=ClusterProfile(nodes=nodes, unreachable=gaps), model=make_model(), goal=GOAL)
    placement = SearchPlacement().place(problem, PlacementEstimator(problem))
    reason = "it does not reach a, b and it is not reached by a, b"
    assert explain_idle(problem, placement) == {"c": f"no pipeline has layers that fit into its memory, and {reason}"}
    nobody = dataclasses.replace(problem.cluster, nodes=nodes[1:])
    assert explain_idle(dataclasses.replace(problem, cluster=nobody), Placement()) == {
        "b": "it does not reach c and it is not reached by c",
        "c": "it does not reach b and it is not reached by b",
    }


def test_some_names_are_told_and_the_number_of_the_others() -> None:
    assert name_some(list("abcdefgh")) == "a, b, c, d, e, f, g, h"
    assert name_some(list("abcdefghij")) == "a, b, c, d, e, f, g, h and 2 more"


def test_use_that_was_not_looked_for_is_not_denied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(idle, "EXPLAINING", 0)
    reasons = explain(make_node("a", 40), make_node("far", 4, site="far"), goal=ServingGoal(concurrency=8))
    assert reasons["far"].endswith("with so many nodes no use in other pipelines was looked for")


def test_alike_nodes_of_a_large_fleet_are_tried_once() -> None:
    """Where no effort is left, another one like a node without use alone is not rated again."""
    nodes = [make_node("a", 40), *(make_node(f"slow-{n}", 40, tflops=1, bandwidth_gb_s=10) for n in range(50))]
    goal = ServingGoal(concurrency=1)
    costs = CostModel(PlacementProblem(cluster=ClusterProfile(nodes=tuple(nodes)), model=make_model(), goal=goal))
    effort = Effort(0)
    alone = Pipeline(costs, (0,), (0, costs.num_layers))
    assert IdleUses(costs, effort, is_quick=True).adopt([alone]) == [alone]
    assert -effort.left < 2 * 10

from __future__ import annotations

from dataclasses import replace

import pytest

from parallax_cluster.placement.cost_model import CostModel
from parallax_cluster.placement.devices import find_device
from parallax_cluster.placement.estimate import PlacementEstimator
from parallax_cluster.placement.stage_look import ERRORS, Origin, find_origin, find_range, look_at_stages, name_origin
from parallax_core.contracts.placement import (
    ClusterProfile,
    LinkProfile,
    NodeProfile,
    PlacedStage,
    Placement,
    PlacementProblem,
    ServingGoal,
)
from parallax_core.contracts.stage import LayerRange
from tests.support.clusters import GB, make_model, make_node

STAGES = (PlacedStage("one", LayerRange(0, 3)), PlacedStage("two", LayerRange(3, 8)))
PLACEMENT = Placement((STAGES,))
LINK = LinkProfile(ends=("one", "two"), round_trip_s=0.25, bandwidth=1e6)


def make_problem(*nodes: NodeProfile) -> PlacementProblem:
    goal = ServingGoal(prompt_tokens=100, output_tokens=28, concurrency=3)
    return PlacementProblem(
        cluster=ClusterProfile(nodes=nodes, links=(LINK,)), model=make_model(8, kv=GB // 1024), goal=goal
    )


def test_memory_left_and_hops_are_those_of_the_requests_served() -> None:
    problem = make_problem(make_node("one", 20), make_node("two", 30))
    [estimate] = PlacementEstimator(problem).estimate(PLACEMENT).pipelines
    first, second = look_at_stages(CostModel(problem), STAGES, estimate)
    model, tokens = problem.model, 128 * estimate.num_requests
    for look, layers, memory in ((first, model.layers[:3], 20), (second, model.layers[3:], 30)):
        taken = sum(layer.weights + tokens * layer.kv for layer in layers)
        assert look.free == pytest.approx(memory * GB - taken, abs=2)
    assert not first.hop_s
    assert second.hop_s == pytest.approx(0.125 + model.cross(3) / 1e6)


@pytest.mark.parametrize(
    ("name", "change", "origin"),
    [
        ("RTX 4090", {}, "typical"),
        ("RTX 4090", {"memory": 1}, "typical"),
        ("RTX 4090", {"bandwidth": 1e9}, "data sheet"),
        ("RTX 4090", {"is_measured": True}, "measured"),
        ("RTX 4090", {"name": "Abacus"}, "data sheet"),
    ],
)
def test_origin_of_figures(name: str, change: dict[str, object], origin: Origin) -> None:
    device = find_device(name)
    assert device
    node = NodeProfile(name="a", device=replace(device, **change))  # type: ignore[arg-type]  # of several types
    assert name_origin(node) == origin


def test_least_certain_figures_of_the_nodes_used_give_the_range() -> None:
    sheet = make_node("three", 20)
    measured = [replace(node, device=replace(node.device, is_measured=True)) for node in map(make_node, ("one", "two"))]
    problem = make_problem(*measured, sheet)
    assert find_origin(problem, PLACEMENT) == "measured"
    assert find_range(problem, PLACEMENT) == (1 / ERRORS["measured"], ERRORS["measured"])
    problem = make_problem(measured[0], make_node("two", 30), sheet)
    assert find_origin(problem, PLACEMENT) == "data sheet"

from __future__ import annotations

from collections.abc import Sequence

import pytest

from parallax_cluster.placement.estimate import PlacementEstimator
from parallax_cluster.placement.same_form import take_over
from parallax_core.api import ClusterProfile, LayerRange, PlacedStage, PlacementProblem, ServingGoal, StageLease
from tests.support.clusters import make_model, make_node

FORMS = {"a": "x", "b": "y", "c": "y", "d": "x", "e": "y"}


def place(*stages: tuple[str, int, int]) -> tuple[PlacedStage, ...]:
    return tuple(PlacedStage(node, LayerRange(start, stop)) for node, start, stop in stages)


def repair(
    nodes: dict[str, float], *pipelines: Sequence[PlacedStage], unreachable: frozenset[tuple[str, str]] = frozenset()
) -> list[tuple[PlacedStage, ...]] | None:
    made = tuple(make_node(name, memory) for name, memory in nodes.items())
    cluster = ClusterProfile(nodes=made, unreachable=unreachable)
    problem = PlacementProblem(cluster=cluster, model=make_model(6, 1.0), goal=ServingGoal(concurrency=1))
    found = take_over(problem, PlacementEstimator(problem), pipelines, FORMS.__getitem__)
    return None if found is None else list(found.pipelines)


BROKEN = place(("a", 0, 3), ("b", 3, 6))


@pytest.mark.parametrize(
    ("nodes", "wanted"),
    [
        ({"a": 4, "c": 4}, place(("a", 0, 3), ("c", 3, 6))),
        ({"a": 4, "c": 4, "e": 9}, place(("a", 0, 3), ("e", 3, 6))),  # the one with more memory
        ({"a": 4, "c": 2}, None),  # too small
        ({"a": 9, "d": 9}, None),  # of another form
        ({"a": 4, "b": 4}, None),  # nothing is lost
    ],
)
def test_node_of_the_same_form_takes_the_place(nodes: dict[str, float], wanted: tuple[PlacedStage, ...] | None) -> None:
    assert repair(nodes, BROKEN) == (None if wanted is None else [wanted])


def test_neighbour_of_the_same_form_takes_the_layers_too() -> None:
    stages = place(("a", 0, 2), ("b", 2, 4), ("c", 4, 6))
    assert repair({"a": 3, "c": 5}, stages) == [place(("a", 0, 2), ("c", 2, 6))]
    assert repair({"a": 9, "b": 9}, stages) == [place(("a", 0, 2), ("b", 2, 6))]


def test_whole_pipelines_and_links_count() -> None:
    other = place(("c", 0, 6))
    assert repair({"a": 4, "c": 9, "e": 4}, BROKEN, other) == [other, place(("a", 0, 3), ("e", 3, 6))]
    assert repair({"a": 4, "c": 4}, BROKEN, unreachable=frozenset({("a", "c")})) is None


def test_shared_nodes_are_left_to_the_policy() -> None:
    lease = StageLease(number=0, holds=LayerRange(0, 3), memory_share=0.5)
    shared = (PlacedStage("a", LayerRange(0, 3), lease), *place(("b", 3, 6)))
    assert repair({"a": 4, "c": 4}, shared) is None

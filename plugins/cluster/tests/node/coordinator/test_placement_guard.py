"""A placement policy that is faulty does not keep a model from being placed."""

from __future__ import annotations

from typing import Any, cast

import pytest

from parallax_cluster.node.coordinator.placement_guard import PlacementGuard
from parallax_cluster.placement.estimate import PlacementEstimator
from parallax_cluster.placement.policy import SearchPlacement
from parallax_core.api import LayerRange, PlacedStage, Placement, PlacementPolicy
from tests.support.clusters import make_problem

PROBLEM = make_problem(0, most_nodes=4)
ESTIMATOR = PlacementEstimator(PROBLEM)
SEARCHED = SearchPlacement().place(PROBLEM, ESTIMATOR)


class Answering:
    """A policy that has one answer, whatever the problem."""

    def __init__(self, answer: object) -> None:
        self._answer = answer

    def place(self, *_: object) -> Any:
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer


def place(answer: object) -> Placement:
    return PlacementGuard(cast("PlacementPolicy", Answering(answer))).place(PROBLEM, ESTIMATOR)


@pytest.mark.parametrize("count", [0, 1, len(SEARCHED.pipelines)])
def test_valid_placement_is_that_of_the_policy(count: int) -> None:
    answer = Placement(SEARCHED.pipelines[:count])
    assert place(answer) is answer


@pytest.mark.parametrize(
    "answer",
    [
        None,
        SEARCHED.pipelines,
        RuntimeError("a bug"),
        Placement(((PlacedStage("nobody", LayerRange(0, 7)),),)),
        Placement(((PlacedStage(SEARCHED.pipelines[0][0].node, LayerRange(0, 1)),),)),
    ],
    ids=["nothing", "no placement", "an error", "a node that is not there", "some of the layers"],
)
def test_answer_that_is_none_is_replaced_by_the_search(answer: object) -> None:
    assert place(answer) == SEARCHED

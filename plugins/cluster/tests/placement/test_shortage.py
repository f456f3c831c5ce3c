from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from parallax_cluster.placement.cost_model import CostModel
from parallax_cluster.placement.estimate import PlacementEstimator
from parallax_cluster.placement.policy import SearchPlacement
from parallax_cluster.placement.shortage import MOST_ORDERED, describe_shortage, find_rest, measure_need
from parallax_core.contracts.placement import ClusterProfile, ModelDemand, PlacementProblem, ServingGoal
from tests.support.clusters import GB, make_model, make_node

GIB = 2**30 / GB
GOAL = ServingGoal(prompt_tokens=4, output_tokens=4, concurrency=1)


def tie(model: ModelDemand, size_gb: float) -> ModelDemand:
    """Return a model with an embedding of this size, which its head shares."""
    size, layers = int(size_gb * GB), list(model.layers)
    for end in (0, -1):
        layers[end] = replace(layers[end], weights=layers[end].weights + size)
    return replace(model, layers=tuple(layers), shared=size)


def make_problem(model: ModelDemand, *rooms_gb: float) -> PlacementProblem:
    nodes = tuple(make_node(f"n{number}", room) for number, room in enumerate(rooms_gb))
    return PlacementProblem(cluster=ClusterProfile(nodes=nodes), model=model, goal=GOAL)


def fits(problem: PlacementProblem) -> bool:
    return bool(SearchPlacement().place(problem, PlacementEstimator(problem)).pipelines)


TIED = tie(make_model(8, GIB), 4 * GIB)
"""Eight layers of a GiB, and an embedding of four, with which the first and the last have five each."""


@pytest.mark.parametrize(
    ("rooms", "expected"),
    [
        ((), "needs 12.0 GiB for its weights and 512 KiB for a request, and no node has joined"),
        ((8.1,), "and there is one node, with 8.1 GiB; layers 0-4 do not fit, and need 8.0 GiB more"),
        ((3.0,), "and there is one node, with 3.0 GiB; none has room for the first layer or the last, and a request"),
        (
            (7.1, 7.1),
            "there are 2 nodes, with 14.2 GiB together and 7.1 GiB at most; layers 3-5 do not fit, and need 2.0 GiB",
        ),
        ((5.1, 2.1, 5.1, 2.1), "with 14.4 GiB together and 5.1 GiB at most; layers 1-3 do not fit, and need 2.0 GiB"),
    ],
)
def test_shortage_names_what_is_needed_and_what_is_left_over(rooms: tuple[float, ...], expected: str) -> None:
    problem = make_problem(TIED, *(room * GIB for room in rooms))
    assert not fits(problem)
    assert expected in describe_shortage(problem)


def test_shortage_names_the_borders_at_which_the_model_cannot_be_cut() -> None:
    model = replace(TIED, borders=(9, 9, 9, 0, 0, 9, 9))
    said = describe_shortage(make_problem(model, 7.1 * GIB, 7.1 * GIB))
    assert "layers 3-6 do not fit, and need 3.0 GiB more; no stage may begin with 4, 5: `parallax models show`" in said


def test_memory_that_seems_to_suffice_does_not_hold_the_embeddings_twice() -> None:
    problem = make_problem(TIED, 7 * GIB, 7 * GIB)
    assert not fits(problem)
    told = describe_shortage(problem)
    assert "needs 12.0 GiB for its weights" in told
    assert "(16.0 GiB in several stages: the first and the last have the embeddings)" in told
    assert "with 14.0 GiB together" in told
    assert fits(make_problem(TIED, 12.1 * GIB))
    assert fits(make_problem(TIED, 8.1 * GIB, 8.1 * GIB))
    plain = describe_shortage(make_problem(make_model(8, GIB), 1 * GIB, 2 * GIB))
    assert "several stages" not in plain, "nothing is held twice"


@pytest.mark.parametrize("seed", range(40))
def test_node_with_room_for_what_is_left_over_would_do(seed: int) -> None:
    rng = Random(seed)
    model = tie(make_model(6, 1.0), rng.choice([0.0, 0.5, 3.0]))
    rooms = [rng.uniform(0.2, 3.0) for _ in range(rng.randint(1, MOST_ORDERED + 3))]
    problem = make_problem(model, *rooms)
    costs = CostModel(problem)
    rest = find_rest(costs)
    if not len(rest):
        assert fits(problem)
        return
    room = measure_need(costs, rest) / GB
    assert fits(make_problem(model, *rooms, room + 1e-6))
    if len(rooms) <= MOST_ORDERED:
        assert not fits(problem)


def test_layers_that_fit_but_cannot_be_used_together_are_not_called_too_many() -> None:
    problem = make_problem(make_model(8), 5, 5)
    assert not len(find_rest(CostModel(problem)))
    assert "that would do if they could be used together" in describe_shortage(problem)

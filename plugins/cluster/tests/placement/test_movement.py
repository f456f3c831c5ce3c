from __future__ import annotations

import dataclasses
import math

import pytest

from parallax_cluster.placement.estimate import PlacementEstimator
from parallax_cluster.placement.movement import (
    HORIZON_S,
    LEAST_GAIN,
    PAUSE_S,
    Movement,
    find_loads,
    is_worth_moving,
    measure_movement,
)
from parallax_core.contracts.placement import (
    ClusterProfile,
    Estimate,
    PlacedStage,
    Placement,
    PlacementProblem,
    ServingGoal,
)
from parallax_core.contracts.stage import LayerRange
from tests.support.clusters import GB, make_model, make_node


def split(cut: int) -> Placement:
    return Placement(((PlacedStage("a", LayerRange(0, cut)), PlacedStage("b", LayerRange(cut, 8))),))


NODES = (make_node("a", 20), dataclasses.replace(make_node("b", 20), cached_layers=LayerRange(4, 6)))
PROBLEM = PlacementProblem(cluster=ClusterProfile(nodes=NODES), model=make_model(8))


def test_layers_in_memory_cost_nothing_and_cached_ones_little() -> None:
    assert measure_movement(PROBLEM, split(6), split(6)) == Movement(load_bytes=0, load_s=0.0, num_moved=0)
    assert measure_movement(PROBLEM, split(6), split(3)) == Movement(load_bytes=3 * GB, load_s=22.0, num_moved=1)
    assert measure_movement(PROBLEM, split(3), split(5)).load_bytes == 2 * GB
    assert measure_movement(PROBLEM, Placement(), split(4)).load_bytes == 8 * GB
    held = [
        dataclasses.replace(node, loaded_layers=LayerRange(*ends))
        for node, ends in zip(NODES, [(0, 4), (4, 8)], strict=True)
    ]
    problem = dataclasses.replace(PROBLEM, cluster=ClusterProfile(nodes=tuple(held)))
    assert measure_movement(problem, Placement(), split(4)).load_bytes == 0
    assert measure_movement(problem, split(6), split(5)).load_bytes == GB


def test_change_is_worth_what_it_gains_within_the_horizon() -> None:
    estimate = PlacementEstimator(PROBLEM).estimate(split(4))
    better, little = (dataclasses.replace(estimate, tokens_per_s=estimate.tokens_per_s * n) for n in (1.2, 1.09))
    quick, slow = (Movement(load_bytes=1, load_s=seconds, num_moved=1) for seconds in (1.0, 120.0))
    assert is_worth_moving(PROBLEM, estimate, better, quick)
    assert not is_worth_moving(PROBLEM, estimate, better, slow)
    assert not is_worth_moving(PROBLEM, estimate, estimate, Movement(load_bytes=0, load_s=0.0, num_moved=0))
    assert not is_worth_moving(PROBLEM, better, estimate, quick)
    assert not is_worth_moving(PROBLEM, estimate, little, quick), "predictions are no more exact"
    assert is_worth_moving(PROBLEM, estimate, little, dataclasses.replace(quick, num_moved=0))


def test_anything_is_better_than_no_pipeline() -> None:
    nothing, estimate = (PlacementEstimator(PROBLEM).estimate(each) for each in (Placement(), split(4)))
    slow = Movement(load_bytes=1, load_s=1e6, num_moved=1)
    assert is_worth_moving(PROBLEM, nothing, estimate, slow)
    assert not is_worth_moving(PROBLEM, estimate, nothing, slow)


def test_what_both_ends_share_is_loaded_once() -> None:
    first, *middle, last = PROBLEM.model.layers
    ends = [dataclasses.replace(each, weights=3 * GB) for each in (first, last)]
    tied = dataclasses.replace(PROBLEM.model, layers=(ends[0], *middle, ends[1]), shared=2 * GB)
    problem, whole = dataclasses.replace(PROBLEM, model=tied), Placement(((PlacedStage("a", LayerRange(0, 8)),),))
    assert measure_movement(problem, Placement(), whole).load_bytes == 10 * GB
    assert measure_movement(problem, split(6), whole).load_bytes == 2 * GB
    assert measure_movement(problem, Placement(), split(4)).load_bytes == 12 * GB


def predict(
    tokens_per_s: float = 64.0, response_s: float = 8.0, num_requests: int = 0, num_pipelines: int = 2
) -> Estimate:
    """Return a prediction with figures that binary fractions hold exactly."""
    [pipeline] = PlacementEstimator(PROBLEM).estimate(split(4)).pipelines
    return Estimate(
        pipelines=(pipeline,) * num_pipelines,
        num_requests=num_requests,
        tokens_per_s=tokens_per_s,
        ttft_s=1.0,
        token_s=1.0,
        request_s=response_s,
        response_s=response_s,
    )


def moves(num_moved: int = 1, load_s: float = 0.0) -> Movement:
    return Movement(load_bytes=1, load_s=load_s, num_moved=num_moved)


def test_gain_of_exactly_the_least_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    old = predict(num_requests=1)
    for factor, is_worth in ((1 + LEAST_GAIN + 1e-9, True), (1 + LEAST_GAIN - 1e-9, False)):
        assert is_worth_moving(PROBLEM, old, predict(64 * factor, num_requests=1), moves()) is is_worth
    monkeypatch.setattr("parallax_cluster.placement.movement.LEAST_GAIN", 0.125)  # which floats hold exactly
    assert is_worth_moving(PROBLEM, old, predict(72.0, num_requests=1), moves())


def test_change_that_costs_as_much_as_it_gains_is_not_worth_it() -> None:
    goal = ServingGoal(prompt_tokens=100, output_tokens=28, concurrency=1)
    problem = dataclasses.replace(PROBLEM, goal=goal)
    old, new = predict(num_requests=8), predict(96.0, num_requests=8)
    gained = 0.5 * 64 * HORIZON_S
    for num_moved, share in ((1, 0.5), (2, 1.0), (3, 1.0)):
        load_s = (gained / share - 8 * 128 / 2) / 64 - PAUSE_S
        assert not is_worth_moving(problem, old, new, moves(num_moved, load_s))
        assert is_worth_moving(problem, old, new, moves(num_moved, math.nextafter(load_s, 0) - 1e-6))


def test_gain_is_in_the_time_of_a_response_where_that_is_the_aim() -> None:
    goal = dataclasses.replace(PROBLEM.goal, objective="latency")
    problem = dataclasses.replace(PROBLEM, goal=goal)
    old, faster = predict(num_requests=1), predict(32.0, response_s=4.0, num_requests=1)
    assert is_worth_moving(problem, old, faster, moves())
    assert not is_worth_moving(PROBLEM, old, faster, moves())
    assert not is_worth_moving(problem, old, predict(128.0, response_s=16.0, num_requests=1), moves())
    assert not is_worth_moving(problem, old, predict(response_s=0.0), moves(num_moved=0))


def test_without_requests_before_any_served_one_is_worth_it() -> None:
    assert is_worth_moving(PROBLEM, predict(), predict(num_requests=1), moves(load_s=1e9))
    assert not is_worth_moving(PROBLEM, predict(), predict(), moves())


def test_layers_to_load_are_told_by_node_and_layer() -> None:
    sizes = [layer.weights for layer in PROBLEM.model.layers]
    assert find_loads(PROBLEM, split(6), split(6)) == {}
    assert find_loads(PROBLEM, split(6), split(4)) == {"b": {4: sizes[4], 5: sizes[5]}}
    assert find_loads(PROBLEM, split(4), split(6)) == {"a": {4: sizes[4], 5: sizes[5]}}
    assert find_loads(PROBLEM, Placement(), split(7)) == {"a": dict(enumerate(sizes[:7])), "b": {7: sizes[7]}}


def test_node_loads_from_its_disk_only_what_is_there() -> None:
    quick = dataclasses.replace(NODES[1], disk_bandwidth=2e9, download_bandwidth=0.5e9)
    problem = dataclasses.replace(PROBLEM, cluster=ClusterProfile(nodes=(NODES[0], quick)))
    for start, seconds in ((7, 2), (6, 4), (5, 4.5), (4, 5), (3, 7)):
        new = Placement(((PlacedStage("b", LayerRange(start, 8)),),))
        assert measure_movement(problem, Placement(), new).load_s == seconds

from __future__ import annotations

import dataclasses

from parallax_cluster.placement.estimate import PlacementEstimator
from parallax_cluster.placement.movement import Movement, is_worth_moving, measure_movement
from parallax_core.contracts.placement import ClusterProfile, PlacedStage, Placement, PlacementProblem
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

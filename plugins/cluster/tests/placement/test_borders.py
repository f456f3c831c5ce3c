"""Placements of models whose layers stay together, or that send more over some borders than over others."""

from __future__ import annotations

import dataclasses
from itertools import pairwise
from random import Random

import pytest

from parallax_cluster.placement.baselines import GreedyPlacement, WaterFillingPlacement
from parallax_cluster.placement.cost_model import CostModel
from parallax_cluster.placement.estimate import PlacementEstimator
from parallax_cluster.placement.policy import SearchPlacement
from parallax_core.api import LayerRange, PlacedStage, Placement, PlacementProblem
from tests.support.clusters import make_problem
from tests.support.optimum import find_optimum

NEAR = 0.95
"""The least share of the optimum that a placement reaches."""
WIDE = 2**20
"""Bytes that cross a border of four wide streams, for each token."""
FIRST_STREAMS = 100
"""The seeds from which on all borders are wide."""


def join_layers(seed: int, most_nodes: int = 4) -> PlacementProblem:
    """Return a random problem in which some borders are illegal, and the others differ in what crosses them."""
    problem, random = make_problem(seed, most_nodes, most_concurrency=4), Random(seed)
    count = len(problem.model.layers)
    kind = seed % 3 if seed < FIRST_STREAMS else "streams"
    if kind == 0:  # later layers read the keys of some in the middle
        borders = [8192 if cut <= count // 2 else 0 for cut in range(1, count)]
    elif kind == 1:  # a bank that grows with the depth
        borders = [WIDE * cut // count for cut in range(1, count)]
    elif kind == "streams":  # several streams everywhere, and in some places what an index chose
        borders = [WIDE + random.choice([0, 0, 8252]) for _ in range(1, count)]
    else:
        borders = [random.choice([0, 4096, WIDE]) for _ in range(1, count)]
    model = dataclasses.replace(problem.model, borders=tuple(borders), hidden=max(*borders, 8192))
    return dataclasses.replace(problem, model=model)


def find_value(problem: PlacementProblem, placement: Placement) -> float:
    found = PlacementEstimator(problem).estimate(placement)
    return found.tokens_per_s if problem.goal.objective == "throughput" else found.response_s


@pytest.mark.parametrize("seed", range(FIRST_STREAMS + 40))
def test_plan_is_legal_and_near_the_best_legal_one(seed: int) -> None:
    problem = join_layers(seed)
    placement = SearchPlacement().place(problem, PlacementEstimator(problem))
    for stages in placement.pipelines:
        assert all(problem.model.cross(stage.layers.start) for stage in stages[1:])
    best = find_optimum(problem)
    if not placement.pipelines:
        assert best == 0
    elif problem.goal.objective == "throughput":
        assert find_value(problem, placement) >= NEAR * best
    else:
        assert find_value(problem, placement) * NEAR <= best


@pytest.mark.parametrize("policy", [GreedyPlacement(), WaterFillingPlacement()])
@pytest.mark.parametrize("seed", range(30))
def test_baselines_are_legal(policy: GreedyPlacement | WaterFillingPlacement, seed: int) -> None:
    problem = join_layers(seed, 7)
    placement = policy.place(problem, PlacementEstimator(problem))
    PlacementEstimator(problem).read_pipelines(placement)


def test_illegal_placement_is_refused_by_the_estimator() -> None:
    problem = join_layers(0)
    count = len(problem.model.layers)
    one, other = problem.cluster.nodes[:2]
    stages = PlacedStage(one.name, LayerRange(0, count - 1)), PlacedStage(other.name, LayerRange(count - 1, count))
    with pytest.raises(ValueError, match=f"no stage may begin with layer {count - 1}"):
        PlacementEstimator(problem).estimate(Placement((stages,)))


def test_bytes_of_a_border_are_in_the_predicted_times() -> None:
    problem = join_layers(1)
    costs, count = CostModel(problem), len(problem.model.layers)
    link = costs.find_link(0, 1)
    for cut in range(1, count):
        [copy_s] = costs.measure_pipeline((0, 1), (0, cut, count), 1).link_s
        sent = problem.model.cross(cut) * (problem.goal.prompt_tokens + costs.num_decodes)
        assert copy_s == pytest.approx(sent / link.bandwidth)
    assert sorted(problem.model.borders) == list(problem.model.borders)


def test_stage_ends_snap_to_the_last_legal_border() -> None:
    costs = CostModel(join_layers(0))
    assert all(costs.snap(cut) in costs.legal for cut in range(costs.num_layers + 1))
    assert all(costs.count_fitting(0, *cut) == -1 for cut in pairwise(range(costs.legal[-2], costs.num_layers)))

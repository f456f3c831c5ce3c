"""Placements of models whose layers stay together, or that send more over some borders than over others."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from itertools import pairwise
from random import Random

import pytest

from parallax_cluster.placement.baselines import GreedyPlacement, WaterFillingPlacement
from parallax_cluster.placement.cost_model import CostModel
from parallax_cluster.placement.estimate import PlacementEstimator
from parallax_cluster.placement.policy import SearchPlacement
from parallax_core.api import (
    LayerRange,
    LayerShape,
    ModelShape,
    PlacedStage,
    Placement,
    PlacementProblem,
    Plane,
    count_border_bytes,
    list_borders,
)
from tests.support.clusters import make_problem
from tests.support.optimum import find_optimum

NEAR = 0.95
"""The least share of the optimum that a placement reaches."""
WIDE = 2**20
"""Bytes that cross a border of four wide streams, for each token."""
FIRST_STREAMS = 100
"""The seeds from which on all borders are wide."""


SHAPE = ModelShape(
    hidden_size=4096,
    vocab_size=9,
    context_length=9,
    num_heads=1,
    num_kv_heads=1,
    head_dim=1,
    layers=(),
    before_weights=9,
    after_weights=9,
    is_tied=False,
)


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


def join_family(seed: int) -> PlacementProblem:
    """Return a random problem with the borders of a family: four streams and chosen positions, or a growing bank."""
    problem = make_problem(seed, most_nodes=4, most_concurrency=4)
    count, streams = len(problem.model.layers), Plane("hidden", (4, 4096))
    layer = LayerShape(kind="full", weights=9, active_weights=9, kv_width=1, gives=(streams,))
    takes: tuple[str, ...] = ("hidden",)
    if seed % 2:  # every third layer chooses positions for those that follow
        owner = dataclasses.replace(layer, gives=(streams, Plane("chosen", (2048,), "int32")))
        reader = dataclasses.replace(layer, takes=("hidden", "chosen"))
        layers = [reader if index % 3 else owner for index in range(count)]
    else:  # every second layer adds what the head reads
        banks = {index: Plane(f"bank{index}", (7168,)) for index in range(0, count, 2)}
        takes += tuple(plane.name for plane in banks.values())
        layers = [
            dataclasses.replace(layer, gives=(streams, *([banks[index]] if index in banks else [])))
            for index in range(count)
        ]
    shape = dataclasses.replace(SHAPE, layers=tuple(layers), takes=takes)
    borders = tuple(count_border_bytes(border, 2) for border in list_borders(shape))
    hidden = max(borders, default=8192)
    return dataclasses.replace(problem, model=dataclasses.replace(problem.model, borders=borders, hidden=hidden))


def find_value(problem: PlacementProblem, placement: Placement) -> float:
    found = PlacementEstimator(problem).estimate(placement)
    return found.tokens_per_s if problem.goal.objective == "throughput" else found.response_s


CASES = [(join_layers, seed) for seed in range(FIRST_STREAMS + 40)] + [(join_family, seed) for seed in range(100)]


@pytest.mark.parametrize(("make", "seed"), CASES)
def test_plan_is_legal_and_near_the_best_legal_one(make: Callable[[int], PlacementProblem], seed: int) -> None:
    problem = make(seed)
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


def test_bytes_of_a_family_are_those_of_its_planes() -> None:
    """Four streams of 4,096 numbers in bfloat16 take 32 KiB, and a plane of the bank or of positions 14 or 8 KiB."""
    grown, chosen = join_family(2).model, join_family(1).model
    assert list(grown.borders) == [32_768 + 14_336 * ((cut + 1) // 2) for cut in range(1, len(grown.layers))]
    last = len(chosen.layers) - 1
    wide = [cut % 3 or cut == 0 for cut in range(1, last + 1)]
    assert list(chosen.borders) == [32_768 + 8_192 * bool(each) for each in wide]


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

"""The results that GradientHQ/parallax 0.1 gives for its own examples: GPT-OSS layers of 128 experts in 8 bits."""

from __future__ import annotations

import json
from itertools import pairwise, permutations

import pytest

from parallax_cluster.placement.baselines import (
    GreedyPlacement,
    LayerRoom,
    WaterFillingPlacement,
    fill_water,
    group_greedily,
    group_optimally,
    measure_room,
)
from parallax_cluster.placement.estimate import PlacementEstimator
from parallax_core.contracts.placement import ClusterProfile, DeviceProfile, NodeProfile, PlacementProblem
from plugins.cluster.tests.placement.golden_groups import GOLDEN, SEEDS, draw_room, group_room
from tests.support.clusters import make_model, make_node

GIB = 2**30
DEVICES = {"a80": (80, 312), "a40": (40, 312), "5090": (32, 165), "4090": (24, 82.6)}
LAYER = 2880 * (2 * 4096 + 1024) + 3 * 2880 * 2880 * 128
EMBEDDING = 2 * 2880 * 201088


def make_room(num_layers: int, devices: str) -> LayerRoom:
    nodes = tuple(
        NodeProfile(
            name=f"{rank}", device=DeviceProfile(memory=DEVICES[name][0] * GIB, flops=DEVICES[name][1], bandwidth=1)
        )
        for rank, name in enumerate(devices.split())
    )
    return LayerRoom(nodes, num_layers, LAYER, EMBEDDING, EMBEDDING, 0.5)


@pytest.mark.parametrize(("device", "bare", "first"), [("a80", 13, 13), ("a40", 6, 6), ("5090", 5, 4), ("4090", 4, 3)])
def test_capacity_is_that_of_the_original(device: str, bare: int, first: int) -> None:
    room = make_room(36, device)
    assert (room.count(0), room.count(0, is_first=True)) == (bare, first)


@pytest.mark.parametrize(
    ("num_layers", "devices", "expected"),
    [
        (21, "a80 5090 4090", [13, 5, 3]),
        (15, "a80 5090", [11, 4]),
        (20, "a80 5090 4090", [12, 5, 3]),
        (25, "a80 5090 4090 4090", [13, 5, 4, 3]),
        (29, "4090 4090 a80 5090 5090", [13, 5, 5, 3, 3]),
        (8, "5090 5090", [4, 4]),
        (7, "a40 5090", [5, 2]),
    ],
)
def test_water_filling_gives_the_layers_of_the_original(num_layers: int, devices: str, expected: list[int]) -> None:
    room = make_room(num_layers, devices)
    assert fill_water(room, room.sort(range(len(room.nodes)))) == expected


@pytest.mark.parametrize(
    ("num_layers", "devices", "greedy", "optimal"),
    [
        (36, "a80 a80 a80 a80 a80 a80", [[12, 12, 12]] * 2, [[12, 12, 12]] * 2),
        (22, "a80 a80 a40 a40 4090 4090", [[11, 11]], [[13, 6, 3]] * 2),
        (5, "a80", [[5]], [[5]]),
        (6, "a80 4090 4090", [[6], [3, 3]], [[6], [3, 3]]),
        (7, "4090 4090 4090", [[3, 2, 2]], [[3, 2, 2]]),
        (40, "a80 a40", [], []),
    ],
)
def test_pipelines_are_those_of_the_original(
    num_layers: int, devices: str, greedy: list[list[int]], optimal: list[list[int]]
) -> None:
    room = make_room(num_layers, devices)
    assert [fill_water(room, nodes) for nodes in group_greedily(room)] == greedy
    assert [fill_water(room, nodes) for nodes in group_optimally(room, 10_000)] == optimal


@pytest.mark.parametrize("policy", [GreedyPlacement(), WaterFillingPlacement()])
def test_pipeline_without_memory_for_a_request_is_left_out(policy: GreedyPlacement | WaterFillingPlacement) -> None:
    nodes = tuple(make_node(name, 7) for name in "ab")
    for kv, num_pipelines in ((4096, 1), (10**7, 0)):
        problem = PlacementProblem(cluster=ClusterProfile(nodes=nodes), model=make_model(8, kv=kv))
        assert len(policy.place(problem, PlacementEstimator(problem)).pipelines) == num_pipelines


@pytest.mark.parametrize("policy", [GreedyPlacement(), WaterFillingPlacement()])
def test_pipeline_has_an_order_in_which_each_node_reaches_the_next(
    policy: GreedyPlacement | WaterFillingPlacement,
) -> None:
    nodes = tuple(make_node(name, 8) for name in "abc")
    for way in permutations("abc"):
        gaps = frozenset(set(permutations("abc", 2)) - set(pairwise(way)))
        problem = PlacementProblem(cluster=ClusterProfile(nodes=nodes, unreachable=gaps), model=make_model(12, 1.0))
        [stages] = policy.place(problem, PlacementEstimator(problem)).pipelines
        assert tuple(stage.node for stage in stages) == way


@pytest.mark.parametrize("policy", [GreedyPlacement(), WaterFillingPlacement()])
def test_nodes_of_one_room_are_taken_where_the_largest_do_not_reach_each_other(
    policy: GreedyPlacement | WaterFillingPlacement,
) -> None:
    nodes = (make_node("a", 18), make_node("b", 17), make_node("c", 9), make_node("d", 8))
    gaps = frozenset(pair for pair in permutations("abcd", 2) if set(pair) & {"a"} and set(pair) != {"a", "d"})
    problem = PlacementProblem(cluster=ClusterProfile(nodes=nodes, unreachable=gaps), model=make_model(14, 1.0))
    estimator = PlacementEstimator(problem)
    placement = policy.place(problem, estimator)
    assert placement.pipelines
    assert estimator.estimate(placement).tokens_per_s > 0


@pytest.mark.parametrize("seed", SEEDS)
def test_groups_and_their_layers_are_the_golden_ones(seed: int) -> None:
    assert group_room(seed) == json.loads(GOLDEN.read_text(encoding="utf-8"))[seed]


@pytest.mark.parametrize("seed", range(30))
def test_every_pipeline_has_all_layers_and_no_node_more_than_it_holds(seed: int) -> None:
    room = draw_room(seed)
    for groups in (group_greedily(room), group_optimally(room, 10_000)):
        taken = [node for nodes in groups for node in nodes]
        assert len(taken) == len(set(taken))
        for nodes in groups:
            counts = fill_water(room, nodes)
            last = len(nodes) - 1
            most = [room.count(node, is_first=rank == 0, is_last=rank == last) for rank, node in enumerate(nodes)]
            assert sum(counts) == room.num_layers
            assert all(count <= each for count, each in zip(counts, most, strict=True))


def test_nodes_that_cannot_hold_all_layers_get_none() -> None:
    room = make_room(14, "a80")
    assert (fill_water(room, [0]), group_greedily(room), group_optimally(room, 10)) == ([], [], [])
    assert fill_water(make_room(12, "a80"), [0]) == [12]


def test_room_is_measured_by_the_mean_layer_and_the_ends_beyond_it() -> None:
    problem = PlacementProblem(
        cluster=ClusterProfile(nodes=(make_node("a", 7),)), model=make_model(4, 2.0, head_gb=0.5)
    )
    room = measure_room(problem, 0.5)
    assert (room.num_layers, room.layer_bytes, room.share) == (4, 2e9, 0.5)
    assert (room.first_bytes, room.last_bytes) == (0.5e9, 0.5e9)
    assert (room.count(0), room.count(0, is_first=True, is_last=True)) == (1, 1)
    lone = measure_room(PlacementProblem(cluster=problem.cluster, model=make_model(1, 2.0)), 0.5)
    assert (lone.num_layers, lone.layer_bytes, lone.first_bytes, lone.last_bytes) == (1, 2e9, 0, 0)
    pair = measure_room(PlacementProblem(cluster=problem.cluster, model=make_model(2, 2.0, head_gb=1)), 0.5)
    assert (pair.layer_bytes, pair.first_bytes, pair.last_bytes) == (3e9, 0, 0)

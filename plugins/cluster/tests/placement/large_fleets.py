"""Large random fleets, and simple layouts of them to compare the search with.

python -m plugins.cluster.tests.placement.large_fleets [SEED ...]
"""

from __future__ import annotations

import dataclasses
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from random import Random
from typing import NamedTuple

from parallax_cluster.placement.baselines import fill_groups, group_greedily, measure_room
from parallax_cluster.placement.cost_model import CostModel
from parallax_cluster.placement.devices import find_device
from parallax_cluster.placement.estimate import PlacementEstimator
from parallax_cluster.placement.idle_use import IdleUses
from parallax_cluster.placement.pipeline import Pipeline
from parallax_cluster.placement.policy import SearchPlacement
from parallax_cluster.placement.ranges import balance_ranges
from parallax_cluster.placement.seeds import can_hold, order_nodes
from parallax_cluster.placement.shares import rate_pipelines
from parallax_cluster.placement.stage_table import Effort
from parallax_core.contracts.placement import (
    ClusterProfile,
    LayerDemand,
    LinkProfile,
    ModelDemand,
    NodeProfile,
    Placement,
    PlacementProblem,
    ServingGoal,
)

NUM_FLEETS = 50
DEVICES = ("RTX 3060", "RTX 3080", "RTX 3090", "RTX 4070", "RTX 4090", "RTX 5090", "M1", "M2 Pro", "M3 Max", "M4 Max")
SERVERS = ("T4", "L4", "A10", "L40S", "A100 40GB", "A100 80GB", "H100", "RTX A6000")


class Kind(NamedTuple):
    """A model: its layers, and for each the GB of weights that every token meets, of experts, and those it chooses."""

    layers: int
    read_gb: float
    experts_gb: float
    experts: int
    chosen: int
    kv: int


MODELS = (
    Kind(32, 0.14, 0.0, 0, 0, 4096),
    Kind(64, 0.28, 0.0, 0, 0, 4096),
    Kind(80, 0.5, 0.0, 0, 0, 4096),
    Kind(36, 0.06, 1.65, 128, 4, 2048),
    Kind(94, 0.06, 1.2, 128, 8, 2048),
    Kind(61, 0.2, 5.8, 256, 8, 1152),
)
"""Such as 8B, 32B and 70B in 4 to 8 bits, gpt-oss-120b, Qwen3-235B and DeepSeek-V3."""


def make_fleet(seed: int) -> PlacementProblem:
    """Return a fleet of 100 to 1,000 nodes of some devices at some sites, with a model and a load."""
    random = Random(seed)
    number = random.choice([100, 150, 250, 400, 600, 1000])
    kinds = random.sample(random.choice([DEVICES, SERVERS, DEVICES + SERVERS]), random.randint(2, 8))
    sites = [f"site {rank}" for rank in range(random.choice([1, 1, 3, 10, 40]))]
    far = LinkProfile(ends=("", ""), round_trip_s=random.choice([0.002, 0.02, 0.06]), bandwidth=12.5e6)
    links = tuple(LinkProfile(ends=(site, site), round_trip_s=5e-4, bandwidth=125e6) for site in sites)
    nodes = tuple(_make_node(rank, random.choice(kinds), random.choice(sites)) for rank in range(number))
    goal = ServingGoal(
        prompt_tokens=random.choice([128, 512, 2048]),
        output_tokens=random.choice([128, 256, 512]),
        concurrency=max(1, int(number * random.choice([0.05, 0.3, 1, 2, 4]))),
    )
    cluster = ClusterProfile(nodes=nodes, links=links, default_link=far)
    return PlacementProblem(cluster=cluster, model=_make_model(random.choice(MODELS)), goal=goal)


def _make_node(rank: int, name: str, site: str) -> NodeProfile:
    device = find_device(name)
    assert device is not None, name
    return NodeProfile(name=f"n{rank:04}", device=device, site=site)


def _make_model(kind: Kind) -> ModelDemand:
    read, experts = int(kind.read_gb * 1e9), int(kind.experts_gb * 1e9)
    met = read + experts * kind.chosen // max(kind.experts, 1)
    layer = LayerDemand(
        weights=read + experts,
        read=read,
        flops=int(3.2 * met),
        experts=experts,
        num_experts=kind.experts,
        num_active_experts=kind.chosen,
        context_flops=32768,
        kv=kind.kv,
    )
    layers = [layer] * kind.layers
    layers[0] = dataclasses.replace(layer, weights=layer.weights + 10**9)
    layers[-1] = dataclasses.replace(layer, weights=layer.weights + 10**9, read=read + 10**9, draw_flops=10**9)
    return ModelDemand(layers=tuple(layers), hidden=12288)


def list_simple(costs: CostModel) -> Iterator[tuple[str, list[Pipeline]]]:
    """Yield simple layouts, as a person would make them: by size, by kind of device, or by site."""
    able = [node for node in range(len(costs.nodes)) if can_hold(costs, node)]
    whole = [node for node in able if costs.count_fitting(node, 0, costs.num_layers) >= 1]
    others = sorted(set(able) - set(whole))
    alone = _solve(costs, [[node] for node in whole])
    yield "greedy", fill_groups(costs, room := measure_room(costs.problem, 0.65), group_greedily(room))
    if alone:
        yield "alone", alone
    memory: Callable[[int], float] = lambda node: -costs.speeds[node].memory  # noqa: E731
    speed: Callable[[int], float] = lambda node: costs.speeds[node].byte_s  # noqa: E731
    site: Callable[[int], tuple[str, float]] = lambda node: (costs.nodes[node].site, memory(node))  # noqa: E731
    for room_for in (1, 4, 16):
        need = costs.weights[-1] + room_for * costs.kept[-1]
        for name, nodes, begun in (("all", able, []), ("rest", others, alone)):
            if nodes and (name == "all" or alone):
                number = min(len(nodes), int(sum(costs.speeds[node].memory for node in nodes) * 0.9 // need))
                ordered = sorted(nodes, key=memory)
                if number:
                    yield (
                        f"dealt {name} {room_for}",
                        begun + _solve(costs, [ordered[rank::number] for rank in range(number)]),
                    )
                for word, key in (("speed", speed), ("site", site)):
                    groups = _cut(costs, sorted(nodes, key=key), need / 0.9)
                    yield f"{word} {name} {room_for}", begun + _solve(costs, groups)


def _cut(costs: CostModel, nodes: Sequence[int], need: float) -> Iterator[list[int]]:
    """Yield consecutive nodes that have the memory together."""
    group, held = list[int](), 0.0
    for node in nodes:
        group.append(node)
        held += costs.speeds[node].memory
        if held >= need:
            yield group
            group, held = [], 0.0


def _solve(costs: CostModel, groups: Iterable[list[int]]) -> list[Pipeline]:
    """Return a pipeline of each group, balanced for as many requests as it would get, or for one."""
    found, groups = [], list(groups)
    share = max(1, costs.goal.concurrency // max(1, len(groups)))
    for order in (order_nodes(costs, group) for group in groups if group):
        ranges = balance_ranges(costs, order, share) or balance_ranges(costs, order, 1)
        if ranges:
            found.append(Pipeline(costs, *ranges))
    return found


class Compared(NamedTuple):
    """The search and the best simple layout of a fleet."""

    searched: float
    """Tokens per second."""
    simple: float
    name: str
    """Of the best simple layout."""
    seconds: float
    """Of processor time that the search took."""
    most_help: float
    """The largest share of the tokens per second that one of some idle nodes would add."""

    @property
    def share(self) -> float:
        """What the search reaches of the best simple layout."""
        return self.searched / self.simple if self.simple else 1.0


def compare(problem: PlacementProblem) -> Compared:
    """Return what the search and simple layouts reach."""
    estimator, began = PlacementEstimator(problem), time.process_time()
    placement = SearchPlacement().place(problem, estimator)
    seconds = time.process_time() - began
    costs = estimator.costs
    simple = [(rate_pipelines(pipelines, problem.goal), name, pipelines) for name, pipelines in list_simple(costs)]
    _, name, best = max(simple, key=lambda each: each[0])
    reached = estimator.estimate(Placement(tuple(each.place() for each in best))).tokens_per_s if best else 0.0
    searched = estimator.estimate(placement).tokens_per_s if placement.pipelines else 0.0
    return Compared(searched, reached, name, seconds, measure_help(estimator, placement))


def measure_help(estimator: PlacementEstimator, placement: Placement, most: int = 6) -> float:
    """Return by how much the fastest idle nodes of each kind would raise the tokens per second, alone or in a place."""
    costs, pipelines = estimator.costs, estimator.read_pipelines(placement)
    used = {node for pipeline in pipelines for node in pipeline.order}
    idle = {costs.speeds[node]: node for node in range(len(costs.nodes)) if node not in used and can_hold(costs, node)}
    chosen = [idle[speed] for speed in sorted(idle)[:most]]
    uses, (now, _) = IdleUses(costs, Effort(sys.maxsize), is_quick=True), rate_pipelines(pipelines, costs.goal)
    found = [use for node in chosen if (use := uses.find_best(node, pipelines, is_hopeful=True))]
    return max((rating[0] / now - 1 for rating, _ in found), default=0.0)


if __name__ == "__main__":
    for each in map(int, sys.argv[1:] or range(NUM_FLEETS)):
        given = make_fleet(each)
        result = compare(given)
        print(
            f"{each:3} {len(given.cluster.nodes):5} nodes {len(given.model.layers):3} layers"
            f" {given.goal.concurrency:5} requests: {result.searched:9.0f} {result.simple:9.0f} ({result.name})"
            f" {result.share:.3f}, idle {result.most_help:+.3f}, {result.seconds:.1f} s",
            flush=True,
        )

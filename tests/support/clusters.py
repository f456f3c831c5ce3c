"""Random placement problems, and their exact optimum by exhaustive search."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from itertools import combinations, pairwise, permutations
from math import inf
from random import Random

from parallax_core.cluster.placement.cost_model import CostModel
from parallax_core.contracts.placement import (
    ClusterProfile,
    DeviceProfile,
    LayerDemand,
    LinkProfile,
    ModelDemand,
    NodeProfile,
    Objective,
    PlacementProblem,
    ServingGoal,
)

GB = 10**9


def make_node(
    name: str, memory_gb: float = 16, tflops: float = 50, bandwidth_gb_s: float = 500, site: str = ""
) -> NodeProfile:
    """Return a node without fixed overheads."""
    device = DeviceProfile(memory=int(memory_gb * GB), flops=tflops * 1e12, bandwidth=bandwidth_gb_s * GB)
    return NodeProfile(name=name, device=device, site=site)


def make_model(num_layers: int = 8, layer_gb: float = 1.0, kv: int = 4096, head_gb: float = 0.0) -> ModelDemand:
    """Return a model of equal layers, with a head of its own."""
    size, head = int(layer_gb * GB), int(head_gb * GB)
    layer = LayerDemand(weights=size, read=size, flops=size, context_flops=16384, kv=kv)
    layers = [layer] * num_layers
    layers[0] = dataclasses.replace(layers[0], weights=layers[0].weights + head)
    last = layers[-1]
    layers[-1] = dataclasses.replace(last, weights=last.weights + head, read=last.read + head, draw_flops=head)
    return ModelDemand(layers=tuple(layers), hidden=8192)


def make_problem(seed: int, most_nodes: int, most_concurrency: int = 16, num_layers: int = 0) -> PlacementProblem:
    """Return a random problem: unequal nodes in two sites, with a model that some of them hold together."""
    random = Random(seed)
    num_layers = num_layers or random.randint(6, 8)
    model = make_model(num_layers, random.choice([1, 2, 4]), random.choice([2**15, 2**17]), random.choice([0, 0.5, 1]))
    total = sum(layer.weights for layer in model.layers) / GB
    nodes = tuple(_make_node(random, rank, total) for rank in range(random.randint(2, most_nodes)))
    ends = [("home", "office"), ("home", "home"), ("office", "office")]
    links = [
        LinkProfile(ends=each, round_trip_s=10 ** random.uniform(-4, -1.5), bandwidth=10 ** random.uniform(7, 9))
        for each in ends
    ]
    objective: Objective = random.choice(["throughput", "throughput", "latency"])
    goal = ServingGoal(
        prompt_tokens=random.choice([16, 512, 2048]),
        output_tokens=random.choice([16, 256]),
        concurrency=random.choice([each for each in (1, 2, 4, 8, 16) if each <= most_concurrency]),
        objective=objective,
    )
    return PlacementProblem(cluster=ClusterProfile(nodes=nodes, links=tuple(links)), model=model, goal=goal)


def _make_node(random: Random, rank: int, total_gb: float) -> NodeProfile:
    share = random.uniform(0.15, 1.4) if random.random() < 0.8 else random.uniform(0.05, 0.3)
    node = make_node(f"node {rank}", share * total_gb, 10 ** random.uniform(0, 2.3), 10 ** random.uniform(1.5, 3.2))
    overhead_s = random.choice([0, 1e-4, 1e-3])
    device = dataclasses.replace(node.device, step_s=overhead_s, layer_s=2e-5)
    return dataclasses.replace(node, device=device, site=random.choice(["home", "office"]))


def find_optimum(problem: PlacementProblem) -> float:
    """Return the best objective of any placement: tokens per second, or the least mean seconds with waiting.

    Every set of nodes is tried in every order, with all ranges and any number of requests; then sets are joined by
    dynamic programming. It is 0 if the model does not fit.
    """
    costs = CostModel(problem)
    num_nodes, concurrency = len(costs.nodes), costs.goal.concurrency
    alone = {_mask(nodes): _find_best(costs, nodes) for nodes in _list_sets(num_nodes)}
    total = {0: [0.0] + [-inf] * concurrency}
    for mask in range(1, 1 << num_nodes):
        lowest = mask & -mask
        best = list(total[mask ^ lowest])
        for part in (each for each in alone if each & mask == each and each & lowest):
            _join(best, alone[part], total[mask ^ part])
        total[mask] = best
    values = total[(1 << num_nodes) - 1]
    if costs.goal.objective == "throughput":
        return max(values)
    waits = [-value * concurrency / num**2 for num, value in enumerate(values) if num and value > -inf]
    return min(waits, default=0.0)


def _list_sets(num_nodes: int) -> Iterator[tuple[int, ...]]:
    for number in range(1, num_nodes + 1):
        yield from combinations(range(num_nodes), number)


def _mask(nodes: tuple[int, ...]) -> int:
    return sum(1 << node for node in nodes)


def _find_best(costs: CostModel, nodes: tuple[int, ...]) -> list[float]:
    """Return the best value of a pipeline of all these nodes, by the number of its requests."""
    best = [0.0] + [-inf] * costs.goal.concurrency
    for order in permutations(nodes):
        for inner in combinations(range(1, costs.num_layers), len(nodes) - 1):
            cuts = (0, *inner, costs.num_layers)
            fitting = min(costs.count_fitting(node, *cut) for node, cut in zip(order, pairwise(cuts), strict=True))
            for number in range(1, int(min(fitting, costs.goal.concurrency)) + 1):
                cost = costs.measure_pipeline(order, cuts, number)
                is_throughput = costs.goal.objective == "throughput"
                best[number] = max(best[number], cost.tokens_per_s if is_throughput else -number * cost.request_s)
    return best


def _join(best: list[float], one: list[float], other: list[float]) -> None:
    """Raise ``best`` to the sums of two pipelines' values, by the number of requests of both."""
    for first in range(1, len(best)):
        if one[first] > -inf:
            for second in range(len(best) - first):
                best[first + second] = max(best[first + second], one[first] + other[second])

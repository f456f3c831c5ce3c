"""Random placement problems."""

from __future__ import annotations

import dataclasses
from itertools import permutations
from random import Random

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


def cut_links(problem: PlacementProblem, seed: int, share: float) -> PlacementProblem:
    """Return the problem where each node does not reach a share of the others, chosen at random."""
    random, nodes = Random(seed), problem.cluster.nodes
    pairs = ((one.name, other.name) for one, other in permutations(nodes, 2))
    unreachable = frozenset(pair for pair in pairs if random.random() < share)
    return dataclasses.replace(problem, cluster=dataclasses.replace(problem.cluster, unreachable=unreachable))


def _make_node(random: Random, rank: int, total_gb: float) -> NodeProfile:
    share = random.uniform(0.15, 1.4) if random.random() < 0.8 else random.uniform(0.05, 0.3)
    node = make_node(f"node {rank}", share * total_gb, 10 ** random.uniform(0, 2.3), 10 ** random.uniform(1.5, 3.2))
    overhead_s = random.choice([0, 1e-4, 1e-3])
    device = dataclasses.replace(node.device, step_s=overhead_s, layer_s=2e-5)
    return dataclasses.replace(node, device=device, site=random.choice(["home", "office"]))

"""Placement as GradientHQ/parallax 0.1 does it: by memory and FLOPs alone. Policies to compare with.

Both fill pipelines with nodes by the number of layers that a fixed share of their memory holds, and then divide the
layers of each pipeline in proportion to FLOPs. They ignore links, memory bandwidth and the KV cache;
`place` leaves out the pipelines whose memory does not suffice, or whose nodes do not reach each other in any order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from parallax_cluster.placement.cost_model import CostModel
from parallax_cluster.placement.linked import LinkedOrders, grow_pipelines
from parallax_cluster.placement.pipeline import Pipeline
from parallax_core.api import Estimator, NodeProfile, Placement, PlacementProblem

BISECTIONS = 40


@dataclass(frozen=True, slots=True)
class LayerRoom:
    """The number of layers that each node can hold, from its memory alone; layers count as alike."""

    nodes: tuple[NodeProfile, ...]
    num_layers: int
    layer_bytes: float
    first_bytes: float
    """Bytes of the embedding, before the first layer."""
    last_bytes: float
    """Bytes of the output head, after the last layer."""
    share: float
    """The share of a node's memory for weights."""

    def count(self, node: int, *, is_first: bool = False, is_last: bool = False) -> int:
        """Return the number of layers that fit on a node."""
        memory = self.nodes[node].device.memory * self.share - is_first * self.first_bytes - is_last * self.last_bytes
        return max(0, int(memory // self.layer_bytes))

    def sort(self, nodes: Sequence[int]) -> list[int]:
        """Return nodes by the number of layers they hold, largest first."""
        return sorted(nodes, key=lambda node: -self.count(node))


def fill_water(room: LayerRoom, nodes: Sequence[int]) -> list[int]:
    """Return the number of layers of each node of a pipeline, in proportion to FLOPs up to what it can hold.

    Water-filling: the level is raised until the sum of ``min(capacity, level * flops)`` is the number of layers; the
    rest goes to the largest remainders. The list is empty if the nodes cannot hold all layers.
    """
    last = len(nodes) - 1
    most = [room.count(node, is_first=rank == 0, is_last=rank == last) for rank, node in enumerate(nodes)]
    power = [room.nodes[node].device.flops for node in nodes]
    if sum(most) < room.num_layers:
        return []
    low, high = 0.0, max(count / flops for count, flops in zip(most, power, strict=True))
    for _ in range(BISECTIONS):
        level = (low + high) / 2
        if sum(map(min, most, (level * flops for flops in power))) < room.num_layers:
            low = level
        else:
            high = level
    exact = [min(count, high * flops) for count, flops in zip(most, power, strict=True)]
    counts = [int(value) for value in exact]
    for rank in sorted(range(len(nodes)), key=lambda rank: (counts[rank] - exact[rank], rank)) * room.num_layers:
        if sum(counts) < room.num_layers and counts[rank] < most[rank]:
            counts[rank] += 1
    return counts


def group_greedily(room: LayerRoom) -> list[list[int]]:
    """Return the nodes of each pipeline: the largest first, until no further pipeline can be completed.

    While a pipeline has its first node and enough nodes would remain for another pipeline, the smallest node that
    completes it is taken instead of the largest.
    """
    left, pipelines = room.sort(range(len(room.nodes))), list[list[int]]()
    total = sum(map(room.count, left))
    while total >= room.num_layers:
        nodes, missing = list[int](), room.num_layers
        while missing > 0 and left:
            node = _pick(room, left, missing, total) if len(nodes) == 1 else left[0]
            left.remove(node)
            total -= room.count(node)
            count = room.count(node, is_first=not nodes)
            if count >= missing:
                count = room.count(node, is_first=not nodes, is_last=True)
            nodes.append(node)
            missing -= count
        if missing > 0:
            break
        pipelines.append(nodes)
    return pipelines


def _pick(room: LayerRoom, left: Sequence[int], missing: int, total: int) -> int:
    """Return the node to take; ``total`` is the number of layers that those left can hold."""
    if total - missing >= room.num_layers + 1:
        for node in reversed(left):
            if room.count(node, is_last=True) >= missing and total - room.count(node) >= room.num_layers:
                return node
    return left[0]


def group_optimally(room: LayerRoom, most_states: int) -> list[list[int]]:
    """Return the nodes of each pipeline such that pipelines squared per stage are the most.

    By dynamic programming over the nodes and the layers that open pipelines miss, for each number of pipelines. The
    number of states is exponential; no more than ``most_states`` are kept for each node, those with the fewest stages.
    """
    nodes = [node for node in room.sort(range(len(room.nodes))) if room.count(node)]
    most = min(len(nodes), sum(map(room.count, nodes)) // room.num_layers)
    best: tuple[float, list[list[int]]] = (0.0, [])
    for number in range(1, most + 1):
        if pipelines := _group(room, nodes, number, most_states):
            value = number**2 / sum(map(len, pipelines))
            best = max(best, (value, pipelines), key=lambda each: each[0])
    return best[1]


Progression = tuple[tuple[int, ...], int]
"""The layers that each open pipeline misses, ascending, and the number of complete ones."""
Groups = list[tuple[int, list[int]]]
"""The layers that each pipeline misses, and its nodes."""


def _group(room: LayerRoom, nodes: Sequence[int], number: int, most_states: int) -> list[list[int]]:
    states: dict[Progression, tuple[int, Groups]] = {((), 0): (0, [])}
    for node in nodes:
        following = dict(states)  # the node is skipped
        for num_stages, groups in states.values():
            for changed in _add(room, groups, node, number):
                key = _describe(changed)
                if key not in following or following[key][0] > num_stages + 1:
                    following[key] = (num_stages + 1, changed)
        kept = sorted(following.items(), key=lambda item: (sum(item[0][0]) - room.num_layers * item[0][1], item[1][0]))
        states = dict(kept[:most_states])
    _, groups = states.get(((), number), (0, []))
    return [members for _, members in groups]


def _add(room: LayerRoom, groups: Groups, node: int, number: int) -> list[Groups]:
    """Return the groups with a node in each open pipeline, or in a new one."""
    found = []
    for rank, (missing, members) in enumerate(groups):
        if missing > 0:
            left = _close(room, node, missing, is_first=False)
            found.append([*groups[:rank], (left, [*members, node]), *groups[rank + 1 :]])
    if len(groups) < number:
        found.append([*groups, (_close(room, node, room.num_layers, is_first=True), [node])])
    return found


def _close(room: LayerRoom, node: int, missing: int, *, is_first: bool) -> int:
    """Return the layers that a pipeline misses with one node more; the last node needs room for the head."""
    left = missing - room.count(node, is_first=is_first)
    if left <= 0:
        left = missing - room.count(node, is_first=is_first, is_last=True)
    return max(left, 0)


def _describe(groups: Groups) -> Progression:
    missing = sorted(left for left, _ in groups if left > 0)
    return tuple(missing), len(groups) - len(missing)


@dataclass(frozen=True, slots=True)
class GreedyPlacement:
    """Complete one pipeline after the other, with the largest nodes first."""

    param_mem_ratio: float = 0.65
    """The share of a node's memory for weights."""

    def place(self, problem: PlacementProblem, estimator: Estimator) -> Placement:
        """Return the valid ones of its pipelines."""
        del estimator
        room = measure_room(problem, self.param_mem_ratio)
        return _place(problem, room, group_greedily(room))


@dataclass(frozen=True, slots=True)
class WaterFillingPlacement:
    """Choose the number of pipelines by dynamic programming, for the most pipelines with the fewest stages."""

    param_mem_ratio: float = 0.65
    """The share of a node's memory for weights."""
    most_states: int = 500
    """The most states of the dynamic programming per node; without a limit it takes minutes for 20 nodes."""

    def place(self, problem: PlacementProblem, estimator: Estimator) -> Placement:
        """Return the valid ones of its pipelines."""
        del estimator
        room = measure_room(problem, self.param_mem_ratio)
        return _place(problem, room, group_optimally(room, self.most_states))


def measure_room(problem: PlacementProblem, share: float) -> LayerRoom:
    """Return the room for layers of a problem, by the mean of all layers but the first and the last."""
    weights = [layer.weights for layer in problem.model.layers]
    inner = sum(sorted(weights)[: max(1, len(weights) - 2)]) / max(1, len(weights) - 2)
    first, last = weights[0] - inner, weights[-1] - inner
    return LayerRoom(problem.cluster.nodes, len(weights), inner, max(first, 0.0), max(last, 0.0), share)


def fill_groups(costs: CostModel, room: LayerRoom, groups: Sequence[Sequence[int]]) -> list[Pipeline]:
    """Return a pipeline of each group of nodes that has memory for a request, with the layers of `fill_water`.

    Where a node does not reach the next, the group has another order, or if there is none, no pipeline.
    """
    pipelines, orders = [], LinkedOrders(costs)
    for group in groups:
        nodes = orders.find(tuple(group)) or ()
        counts = fill_water(room, nodes) if nodes else []
        ends = [0, *map(costs.snap, accumulate(counts))]
        held = [(node, stop) for node, (start, stop) in zip(nodes, pairwise(ends), strict=bool(counts)) if stop > start]
        if held:
            cuts = (0, *(stop for _, stop in held))
            pipeline = Pipeline(costs, tuple(node for node, _ in held), cuts)
            if pipeline.num_fitting and costs.is_linked(pipeline.order):
                pipelines.append(pipeline)
    return pipelines


def _place(problem: PlacementProblem, room: LayerRoom, groups: Sequence[Sequence[int]]) -> Placement:
    costs = CostModel(problem)
    pipelines = fill_groups(costs, room, groups)
    if costs.has_gaps and not pipelines:  # groups of nodes that reach each other, in place of those by memory
        pipelines = fill_groups(costs, room, grow_pipelines(costs, range(len(costs.nodes))))
    return Placement(tuple(each.place() for each in pipelines))

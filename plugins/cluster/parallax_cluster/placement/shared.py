"""Plans pipelines that share nodes: each node holds one range of layers for several of them.

A step of one node goes on to any node whose layers begin where its own end, so that the requests of a stage can be
divided among several links (Mei et al., "Helix", ASPLOS 2025, section 4). Each pipeline then has a lease of each of
its stages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import inf
from random import Random

from parallax_cluster.placement.flow import FlowGraph

SOURCE, SINK = ("source", 0), ("sink", 0)
GAIN = 1e-6
"""Relative gains below this are ignored."""
NEARLY = 1e-4
"""Rates that differ by a smaller share are equal."""
MOST_ALIKE = 3
"""The most nodes with the same layers."""
EVEN = 0.5
Held = dict[int, tuple[int, int]]
"""The first layer of nodes, and the one after their last."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Rates:
    """How many requests, or tokens, pass through the nodes and links of a cluster in a second."""

    num_layers: int
    legal: Sequence[int] = ()
    """The borders at which a node's layers may begin or end; empty: all."""
    node: Callable[[int, int, int], float]
    """Of a node, the first layer, and the one after the last; 0: it cannot hold them."""
    link: Callable[[int, int], float]
    """Of the link from one node to another; 0: it does not reach that one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SharedPlan:
    """A range of layers for each node in use, and the pipelines through them."""

    held: Held
    rate: float
    """Of all pipelines together."""
    paths: tuple[tuple[tuple[int, ...], float], ...]
    """The nodes of each pipeline, and its rate; a node may be in several."""


def plan_shared(rates: Rates, orders: Iterable[Sequence[int]], effort: int = 2000, seed: int = 0) -> SharedPlan:
    """Return the plan with the highest rate that is found.

    Nodes in order get as many layers as they can pass at a rate. Where the links to the next one are too slow for it,
    two or three nodes hold the same layers, and the requests are divided among their links. The rate is raised by
    bisection, and the order is improved by moving nodes.

    Args:
        rates: of the cluster.
        orders: first orders of nodes.
        effort: the changes of orders that are tried.
        seed: chooses them; the same seed gives the same plan.
    """
    best_order, best_rate = tuple[int, ...](), 0.0
    for order in orders:
        if _fill(rates, order, best_rate * (1 + GAIN)):
            best_order, best_rate = tuple(order), _raise(rates, order, best_rate)
    random = Random(seed)  # noqa: S311 -- the same answer for the same seed is the point
    for _ in range(effort if best_rate else 0):
        order = _move(random, best_order)
        if _fill(rates, order, best_rate * (1 + GAIN)):
            best_order, best_rate = order, _raise(rates, order, best_rate)
    held = _fill(rates, best_order, best_rate) or {}
    graph = _make_graph(rates, held)
    rate = graph.find_most()
    paths = ((tuple(node for kind, node in path if kind == "into"), flow) for path, flow in graph.list_paths())
    return SharedPlan(held=held, rate=rate, paths=tuple(paths))


def _raise(rates: Rates, order: Sequence[int], low: float) -> float:
    """Return the highest rate at which the nodes of an order can hold all layers; ``low`` is one."""
    high = 2 * low or 1.0
    while _fill(rates, order, high):
        low, high = high, 2 * high
    while high - low > NEARLY * high:
        middle = (low + high) / 2
        if _fill(rates, order, middle):
            low = middle
        else:
            high = middle
    return low


def _fill(rates: Rates, order: Sequence[int], rate: float) -> Held | None:
    """Return the ranges of nodes in order such that all pass a rate; None if layers are left."""
    held, before, start, place = Held(), tuple[int, ...](), 0, 0
    while start < rates.num_layers:
        found = []
        for size in range(1, min(MOST_ALIKE, len(order) - place) + 1):
            group = tuple(order[place : place + size])
            if length := _count_layers(rates, before, group, start, rate):
                found.append((length / size, -size, group, length))
        if found:
            _, _, before, length = max(found)
            held |= dict.fromkeys(before, (start, start + length))
            start, place = start + length, place + len(before)
        else:
            place += 1
        if place >= len(order) and start < rates.num_layers:
            return None
    return held


def _count_layers(rates: Rates, before: Sequence[int], group: Sequence[int], start: int, rate: float) -> int:
    """Return the most layers from ``start`` that nodes hold together at a rate, with the links from those before."""
    arriving = [sum(rates.link(one, node) for one in before) if before else inf for node in group]
    length = 0
    for stop in rates.legal or range(1, rates.num_layers + 1):
        if stop <= start:
            continue
        passing = [min(rates.node(node, start, stop), most) for node, most in zip(group, arriving, strict=True)]
        if min(passing) <= 0 or sum(passing) < rate:
            break
        length = stop - start
    return length


def _move(random: Random, order: Sequence[int]) -> tuple[int, ...]:
    """Return an order with two nodes exchanged, or one moved."""
    changed, one, other = list(order), random.randrange(len(order)), random.randrange(len(order))
    if random.random() < EVEN:
        changed[one], changed[other] = changed[other], changed[one]
    else:
        changed.insert(other, changed.pop(one))
    return tuple(changed)


def _make_graph(rates: Rates, held: Held) -> FlowGraph:
    graph = FlowGraph(SOURCE, SINK)
    begins: dict[int, list[int]] = {}
    for node, (start, _) in held.items():
        begins.setdefault(start, []).append(node)
    for node, (start, stop) in held.items():
        rate = rates.node(node, start, stop)
        graph.add(("into", node), ("from", node), rate)
        if start == 0:
            graph.add(SOURCE, ("into", node), rate)
        if stop == rates.num_layers:
            graph.add(("from", node), SINK, rate)
        for other in begins.get(stop, ()):
            graph.add(("from", node), ("into", other), rates.link(node, other))
    return graph

"""Assembles pipelines from nodes whose layers are fixed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import inf

from parallax_core.api import LayerRange, PlacedStage

FindLatency = Callable[[str, str], float]
"""Returns the seconds for a small message from one node to another, and its answer; infinite: it does not reach it."""


def find_covers(
    ranges: Mapping[str, LayerRange], num_layers: int, head: str, find_latency: FindLatency
) -> list[tuple[PlacedStage, ...]]:
    """Return pipelines of all layers, each node in one at most, until the nodes left form no more.

    Ranges have to meet: no node runs fewer layers than it has. Each pipeline is the one with the fewest stages of the
    nodes that are left, of these the one with the shortest round trips from the head through all stages and back, and
    of these the one whose nodes come first by name. So the same nodes give the same pipelines.

    Args:
        ranges: the layers of each node, by name.
        num_layers: the layers of the model.
        head: the name of the head's node.
        find_latency: gives the round trips.
    """
    left, found = dict(ranges), list[tuple[PlacedStage, ...]]()
    while (names := find_path(left, num_layers, head, find_latency)) is not None:
        found.append(tuple(PlacedStage(name, left.pop(name)) for name in names))
    return found


def find_path(
    ranges: Mapping[str, LayerRange], num_layers: int, head: str, find_latency: FindLatency
) -> tuple[str, ...] | None:
    """Return the nodes of the best pipeline, in order, or None. See `find_covers`.

    Dynamic programming over the nodes in the order of their first layers: the best way to each is by one that ends
    where it starts.
    """
    best: dict[str, tuple[int, float, tuple[str, ...]]] = {}
    ending: dict[int, list[str]] = {}
    for name, layers in sorted(ranges.items(), key=lambda each: (each[1].start, each[0])):
        if not 0 <= layers.start < layers.stop <= num_layers:
            continue
        if layers.start == 0:
            best[name] = 1, find_latency(head, name), (name,)
        elif before := ending.get(layers.start):
            ways = [(best[each], trip) for each in before if (trip := find_latency(each, name)) < inf]
            if not ways:
                continue
            best[name] = min((hops + 1, trips + trip, (*names, name)) for (hops, trips, names), trip in ways)
        else:
            continue
        ending.setdefault(layers.stop, []).append(name)
    ends = (best[name] for name in ending.get(num_layers, ()))
    closed = [(hops, trips + find_latency(names[-1], head), names) for hops, trips, names in ends]
    return min(closed)[2] if closed else None


def describe_gap(ranges: Sequence[LayerRange], num_layers: int) -> str:
    """Return what keeps nodes with these layers from forming a pipeline, in words."""
    reached, frontier = {0}, {0}
    while frontier:
        frontier = {each.stop for each in ranges if each.start in frontier and each.stop <= num_layers} - reached
        reached |= frontier
    if num_layers in reached:
        return ""
    furthest = max(reached)
    if not ranges:
        return f"no node has announced layers of the model, which has {num_layers}"
    has = ", ".join(f"{start}-{stop}" for start, stop in sorted({(each.start, each.stop) for each in ranges}))
    return f"no node goes on from layer {furthest} of {num_layers}: nodes have {has}"

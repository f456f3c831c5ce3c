"""Computes the most tokens per second that pass through nodes with ranges of layers, as Helix scores a placement.

A node is an edge whose capacity is its tokens per second with its number of layers. A link goes from a node to each
node whose layers begin where its own end (Mei et al., "Helix", ASPLOS 2025, section 4).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from parallax_core.cluster.placement.flow import FlowGraph

SOURCE, SINK = ("source", 0), ("sink", 0)


def score_ranges(cluster: dict[str, Any], ranges: Iterable[tuple[int, int] | None]) -> float:
    """Return the tokens per second of a placement.

    Args:
        cluster: of benchmarks/data/helix.json.
        ranges: the first layer of each node and the one after its last; None: it is idle.
    """
    graph, placed = FlowGraph(SOURCE, SINK), [(node, *found) for node, found in enumerate(ranges) if found]
    for node, start, stop in placed:
        graph.add(("into", node), ("from", node), find_speed(cluster, node, stop - start))
        if start == 0:
            graph.add(SOURCE, ("into", node), _find_edge(cluster, 0, node))
        if stop == cluster["layers"]:
            graph.add(("from", node), SINK, _find_edge(cluster, 1, node))
        for other, begin, _ in placed:
            if begin == stop:
                graph.add(("from", node), ("into", other), find_link(cluster, node, other))
    return graph.find_most()


def find_speed(cluster: dict[str, Any], node: int, num_layers: int) -> float:
    """Return the tokens per second of a node with a number of layers that it can hold."""
    return float(cluster["tokens_per_s"][cluster["types"][node]][num_layers - 1])


def find_link(cluster: dict[str, Any], one: int, other: int) -> float:
    """Return the tokens per second of a link."""
    links = cluster["links"]
    return float(links[max(one, other)][min(one, other)] if isinstance(links, list) else links)


def _find_edge(cluster: dict[str, Any], side: int, node: int) -> float:
    edges = cluster["edges"]
    return float(edges[side][node] if isinstance(edges, list) else edges)

"""Finds orders of nodes in which each reaches the next, where some nodes cannot connect to others."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterable, Sequence

from parallax_cluster.placement.cost_model import CostModel

MOST_TRIED = 2000
"""The most dead ends of a search for an order of given nodes."""
MOST_BEGUN = 24
"""The most beginnings of a pipeline that are kept, of each length; fewer in clusters of more than `USUAL` nodes."""
USUAL = 16
MOST_WAYS = 32
"""The most nodes that are tried after each of them, largest first."""
Order = tuple[int, ...]


class LinkedOrders:
    """Finds, for given nodes, an order in which each reaches the next; caches the results."""

    def __init__(self, costs: CostModel) -> None:
        self._costs = costs
        self._found: dict[Order, Order | None] = {}

    def find(self, order: Order) -> Order | None:
        """Return ``order`` itself if each of its nodes reaches the next, or else what `find_linked` returns."""
        if self._costs.is_linked(order):
            return order
        if order not in self._found:
            self._found[order] = find_linked(self._costs, order)
        return self._found[order]


def find_linked(costs: CostModel, nodes: Order) -> Order | None:
    """Return an order of all nodes in which each reaches the next; None: none is found.

    By depth-first search for a path through all of them, which goes on with the node that has the fewest ways on
    (Warnsdorff's rule), and of equals with the first in ``nodes``. An end is tried once with the same nodes left.
    """
    reached = {one: [other for other in nodes if other != one and costs.reaches(one, other)] for one in nodes}

    def list_ways(ways: Iterable[int], left: Collection[int]) -> list[int]:
        found = [node for node in ways if node in left]
        return sorted(found, key=lambda node: sum(other in left for other in reached[node]), reverse=True)

    path, left, failed = list[int](), set(nodes), set[tuple[int, frozenset[int]]]()
    ways = [list_ways(reversed(nodes), left)]
    while left and ways and len(failed) < MOST_TRIED:
        if ways[-1]:
            node = ways[-1].pop()
            if (node, frozenset(left)) not in failed:
                path.append(node)
                left.remove(node)
                ways.append(list_ways(reversed(reached[node]), left))
            continue
        ways.pop()
        if path:
            left.add(path[-1])
            failed.add((path.pop(), frozenset(left)))
    return None if left else tuple(path)


def grow_pipelines(costs: CostModel, nodes: Iterable[int]) -> tuple[Order, ...]:
    """Return pipelines in which each node reaches the next, one after the other, until no further one is found."""
    left, found = sorted(nodes, key=lambda node: (-costs.speeds[node].memory, node)), list[Order]()
    most_begun = max(1, MOST_BEGUN * USUAL // max(USUAL, len(left)))
    starts = list(left)
    while starts:
        if (order := _grow(costs, left, starts[:most_begun], most_begun)) is None:
            del starts[:most_begun]  # nor will they be the first of a pipeline when fewer nodes are left
        else:
            found.append(order)
            left, starts = ([node for node in each if node not in order] for each in (left, starts))
    return tuple(found)


def _grow(costs: CostModel, nodes: Sequence[int], starts: Sequence[int], most_begun: int) -> Order | None:
    """Return a pipeline with room for one request, of as few nodes as are found to suffice; None: none is found.

    A beam search: of the beginnings of each length, those are extended that hold most layers.
    """
    begun: list[tuple[int, Order]] = [(0, ())]
    while begun:
        longer: dict[tuple[int, frozenset[int]], tuple[int, Order]] = {}
        for start, order in begun:
            ways = [node for node in nodes if node not in order and costs.reaches(order[-1], node)] if order else starts
            for node in ways[:MOST_WAYS]:
                if (stop := _find_stop(costs, node, start)) == costs.num_layers:
                    return (*order, node)
                if stop > start:
                    longer.setdefault((node, frozenset(order)), (stop, (*order, node)))
        begun = sorted(longer.values(), key=lambda each: -each[0])[:most_begun]
    return None


def _find_stop(costs: CostModel, node: int, start: int) -> int:
    """Return the end of the most layers from ``start`` that a node holds, with one request."""
    if costs.count_fitting(node, start, costs.num_layers) >= 1:
        return costs.num_layers
    stops = [stop for stop in costs.legal if stop > start]
    fitting = bisect_left(stops, 1, key=lambda stop: costs.count_fitting(node, start, stop) < 1)
    return stops[fitting - 1] if fitting else start

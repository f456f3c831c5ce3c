"""Chooses the layers of each node of one pipeline, whose nodes and their order are given."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import pairwise
from math import inf
from operator import add

from parallax_cluster.placement.cost_model import CostModel
from parallax_cluster.placement.stage_table import StageTables, add_crossings, limit_table
from parallax_core.cluster.placement.partition import search_cuts

NEARLY = 0.02
"""The relative width that ends the bisection; from there each next smaller time is tried."""
EPSILON = 1e-9
"""Times that differ by a smaller share are equal."""

Price = Callable[[int, int, int], float]
"""Returns the seconds that a stage computes for one request, from its node, first layer and last layer's successor."""
Ranges = tuple[tuple[int, ...], tuple[int, ...]]
"""The nodes that got layers, in order, and the cuts between them, as `CostModel.measure_pipeline` takes them."""


def balance_ranges(costs: CostModel, order: Sequence[int], num_requests: int) -> Ranges | None:
    """Return ranges such that the slowest stage is as fast as possible; None if the memory does not suffice.

    A bisection of the slowest stage's time: whether a time suffices is found by giving each node, in order, as many
    layers as it computes in that time (Pinar and Aykanat, "Fast optimal load balancing algorithms for 1D partitioning",
    JPDC 2004). Nodes that are not needed get no layers.

    Args:
        costs: of the problem.
        order: the nodes.
        num_requests: whose KV cache must fit.
    """
    price = costs.price_stage(len(order), num_requests)
    fill = _Filler(costs, order, num_requests, price).fill
    best = fill(inf)
    if best is None:
        return None
    high = find_slowest(price, best)
    low, probe = 0.0, 1.05 / sum(1 / price(node, 0, costs.num_layers) for node in order)
    while high - low > NEARLY * high:
        limit = probe if low < probe < high else (low + high) / 2
        found, probe = fill(limit), 0.0
        if found is None:
            low = limit
        else:
            best, high = found, find_slowest(price, found)
    while found := fill(high * (1 - EPSILON)):
        best, high = found, find_slowest(price, found)
    return best


def find_slowest(price: Price, ranges: Ranges) -> float:
    """Return the seconds that the slowest stage computes for a request."""
    return max(price(node, *cut) for node, cut in zip(ranges[0], pairwise(ranges[1]), strict=True))


def shorten_ranges(
    costs: CostModel, order: Sequence[int], num_requests: int, slowest_s: float = inf, tables: StageTables | None = None
) -> Ranges | None:
    """Return the ranges that take the least time in all, with every stage within ``slowest_s`` for a request.

    By dynamic programming over the layers before each cut, in O(stages * layers**2). Every node gets layers.

    Args:
        costs: of the problem.
        order: the nodes.
        num_requests: whose KV cache must fit.
        slowest_s: the most seconds of a stage for a request.
        tables: keeps what is computed, for the next call.
    """
    if len(order) > costs.num_layers:
        return None
    known = tables or StageTables(costs)
    found = [known.find(node, len(order), num_requests) for node in order]
    if slowest_s < inf:
        found = [limit_table(table, slowest_s) for table in found]
    if costs.has_uneven_borders:
        pairs = zip(found[1:], pairwise(order), strict=True)
        found[1:] = [add_crossings(costs, table, *pair) for table, pair in pairs]
    best = search_cuts(found, add)
    return (tuple(order), best[1]) if best else None


class _Filler:
    """Gives nodes in turn as many layers as they have memory for and compute within a limit."""

    def __init__(self, costs: CostModel, order: Sequence[int], num_requests: int, price: Price) -> None:
        self._costs = costs
        self._order = order
        self._price = price
        kept = (weights + num_requests * kept for weights, kept in zip(costs.weights, costs.kept, strict=True))
        self._needed = list(kept)
        """Bytes that the layers before each need."""

    def fill(self, limit_s: float) -> Ranges | None:
        """Return the ranges; None if layers are left. The last node that is needed may have fewer than it could."""
        nodes, cuts = [], [0]
        for node in self._order:
            stop = self._find_stop(node, cuts[-1], limit_s)
            if stop > cuts[-1]:
                nodes.append(node)
                cuts.append(stop)
            if stop == self._costs.num_layers:
                return tuple(nodes), tuple(cuts)
        return None

    def _find_stop(self, node: int, start: int, limit_s: float) -> int:
        """Return the end of the most layers from ``start`` that fit and take at most ``limit_s`` for a request."""
        high = self._costs.snap(self._find_end_of_memory(node, start))
        if high == start or (most_s := self._price(node, start, high)) <= limit_s:
            return high
        low, low_s = start, 0.0
        while high - low > 1:  # up to low is within the limit, up to high is not; layers are nearly alike
            stop = low + int((high - low) * (limit_s - low_s) / (most_s - low_s))
            stop = min(max(stop, low + 1), high - 1)
            if (taken_s := self._price(node, start, stop)) <= limit_s:
                low, low_s = stop, taken_s
            else:
                high, most_s = stop, taken_s
        return self._costs.snap(low)

    def _find_end_of_memory(self, node: int, start: int) -> int:
        memory = self._costs.speeds[node].memory
        stop = bisect_right(self._needed, self._needed[start] + memory) - 1
        is_whole = start == 0 and self._needed[-1] - self._costs.problem.model.shared <= memory
        return self._costs.num_layers if is_whole else stop

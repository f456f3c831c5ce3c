"""Tries to use idle nodes in a placement: for a new pipeline, or a stage of an existing one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from heapq import nsmallest

from parallax_cluster.placement.cost_model import CostModel
from parallax_cluster.placement.device_speed import Speed
from parallax_cluster.placement.linked import LinkedOrders
from parallax_cluster.placement.pipeline import Pipeline
from parallax_cluster.placement.ranges import Ranges, balance_ranges, shorten_ranges
from parallax_cluster.placement.seeds import can_hold
from parallax_cluster.placement.shares import Rating, is_better, rate_pipelines, share_requests
from parallax_cluster.placement.stage_table import Effort, StageTables
from parallax_cluster.placement.variants import MOST_CUTS

NUM_PLACES = 2
"""The places in a pipeline where a node is tried if few are."""


class IdleUses:
    """Finds uses of nodes without layers. Ranges of a node are kept, since it is tried at many places."""

    def __init__(self, costs: CostModel, effort: Effort, *, is_quick: bool = False) -> None:
        """Try idle nodes with some effort; if ``is_quick``, only at places that are near, and without long tables."""
        self._costs = costs
        self._is_quick = is_quick
        self._effort = effort
        self._tables = StageTables(costs, effort)
        self._orders = LinkedOrders(costs)

    @property
    def has_effort(self) -> bool:
        """Whether there is effort left."""
        return self._effort.left > 0

    def adopt(self, pipelines: Sequence[Pipeline]) -> list[Pipeline]:
        """Return the pipelines with the idle nodes that better them, until none does or the effort is spent."""
        best, score = list(pipelines), rate_pipelines(pipelines, self._costs.goal)
        able = [node for node in range(len(self._costs.nodes)) if can_hold(self._costs, node)]
        has_changed = bool(best)
        while has_changed:
            has_changed = False
            used, tried = {node for pipeline in best for node in pipeline.order}, set[tuple[Speed, str]]()
            for node in (node for node in able if node not in used):
                site = self._costs.nodes[node].site if self._effort.left > 0 else ""  # alone, it does not count
                kind = self._costs.speeds[node], site
                if self._is_quick and kind in tried:
                    continue
                tried.add(kind)
                if (found := self.find_best(node, best, is_hopeful=True)) and is_better(found[0], score):
                    score, best = found
                    has_changed = True
                    tried.clear()
        return best

    def find_best(
        self, node: int, pipelines: Sequence[Pipeline], *, is_hopeful: bool = False
    ) -> tuple[Rating, list[Pipeline]] | None:
        """Return the best pipelines with a node that has no layers, and their rating; None if it can hold none there.

        Args:
            node: that is idle.
            pipelines: without it.
            is_hopeful: whether to leave out those that are worse than without it.
        """
        best = None
        for changed in self._list_uses(node, pipelines, is_hopeful=is_hopeful):
            self._effort.spend(1 + 2 * len(pipelines))
            score = rate_pipelines(changed, self._costs.goal)
            if best is None or score > best[0]:
                best = score, changed
        return best

    def _list_uses(self, node: int, pipelines: Sequence[Pipeline], *, is_hopeful: bool) -> Iterator[list[Pipeline]]:
        """Yield the pipelines with the node as one more, and with a stage of one of them on it as well."""
        goal = self._costs.goal
        for ranges in self._list_ranges((node,), {goal.concurrency, 1}):
            yield [*pipelines, Pipeline(self._costs, *ranges)]
        shares = share_requests(pipelines, goal) if self._effort.left > 0 else []
        for rank, (old, share) in enumerate(zip(pipelines, shares, strict=False)):
            if self._effort.left <= 0:
                break
            others, number = [*pipelines[:rank], *pipelines[rank + 1 :]], max(1, share)
            numbers = {number, min(2 * number, goal.concurrency), goal.concurrency, max(1, number // 2)}
            for new in self._insert(node, old, numbers):
                if not is_hopeful or _may_better(new, old, numbers):
                    yield [*others, new]

    def _insert(self, node: int, old: Pipeline, numbers: set[int]) -> Iterator[Pipeline]:
        """Yield pipelines with the node at every place of one."""
        for place in self._list_places(node, old.order):
            if (order := self._orders.find((*old.order[:place], node, *old.order[place:]))) is not None:
                for ranges in self._list_ranges(order, numbers):
                    yield Pipeline(self._costs, *ranges)

    def _list_places(self, node: int, order: tuple[int, ...]) -> Iterable[int]:
        """Return where to put a node: before the one at this place."""
        places = range(len(order) + 1)
        if not self._is_quick:
            return places
        find, last = self._costs.find_link, len(order) - 1

        def measure_detour(place: int) -> tuple[bool, float]:
            is_linked = self._costs.is_linked((*order[max(0, place - 1) : place], node, *order[place : place + 1]))
            before, after = order[place - 1], order[place if place <= last else 0]
            detour_s = sum(find(node, other).round_trip_s for other in (before, after))
            return not is_linked, detour_s - find(before, after).round_trip_s

        return nsmallest(NUM_PLACES, places, key=measure_detour)

    def _list_ranges(self, order: tuple[int, ...], numbers: set[int]) -> Iterator[Ranges]:
        known = set[Ranges]()
        for num_requests in sorted(numbers, reverse=True):
            self._effort.spend(2 * len(order))  # for the ranges, and for the times with them
            balanced = balance_ranges(self._costs, order, num_requests)
            is_short = not self._is_quick or len(order) * self._costs.num_layers**2 <= MOST_CUTS
            tables = self._tables if balanced and is_short else None
            shortest = shorten_ranges(self._costs, order, num_requests, tables=tables) if tables else None
            for ranges in (balanced, shortest):
                if ranges and len(ranges[0]) == len(order) and ranges not in known:
                    known.add(ranges)
                    yield ranges


def _may_better(new: Pipeline, old: Pipeline, numbers: set[int]) -> bool:
    """Return whether a pipeline may have more requests than an old one, or is better with some of ``numbers``."""
    if new.max_requests > old.max_requests:
        return True
    return any(new.value(number) > old.value(number) for number in numbers if number <= new.max_requests)

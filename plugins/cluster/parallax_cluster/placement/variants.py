"""Finds pipelines of given nodes in order, which differ in the layers of each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import inf

from parallax_cluster.placement.cost_model import CostModel
from parallax_cluster.placement.linked import LinkedOrders
from parallax_cluster.placement.pipeline import Pipeline
from parallax_cluster.placement.ranges import Ranges, balance_ranges, find_slowest, shorten_ranges
from parallax_cluster.placement.stage_table import Effort, StageTables

SLACKS = (1.0, 1.1, 1.3, 2.0, inf)
"""The slowest stages to allow, as multiples of the slowest in balanced ranges, where shorter ranges are sought."""
FEW_SLACKS = (1.0, inf)
MOST_CUTS = 10_000
"""The most stages times layers squared for which `FEW_SLACKS` are tried."""
CHEAP = 1000
"""Dynamic programming over this number of ranges takes as long as balancing a stage."""
HALF, FEWER, NEXT = 0.5, 0.75, 0.9
"""Ranges are sought for numbers of requests that become smaller by this factor, and at least by one."""


class VariantFinder:
    """Finds the pipelines of nodes in order: balanced, and as short as the slowest stage allows."""

    def __init__(self, costs: CostModel, effort: Effort) -> None:
        self._costs = costs
        self._effort = effort
        self._tables = StageTables(costs, effort)
        self._orders = LinkedOrders(costs)

    def find_few(self, order: tuple[int, ...], most: int) -> list[Pipeline]:
        """Return some pipelines for at most ``most`` requests; without dynamic programming if that takes long."""
        is_short = len(order) * self._costs.num_layers**2 <= MOST_CUTS
        return list(self.list_all(order, most, FEW_SLACKS if is_short else (), FEWER))

    def list_all(
        self, order: tuple[int, ...], most: int, slacks: Sequence[float] = SLACKS, share: float = HALF
    ) -> Iterator[Pipeline]:
        """Yield different pipelines, first those for ``most`` requests, and then those for fewer, step by step.

        Where a node of ``order`` does not reach the next, they have another order.
        """
        linked = self._orders.find(order)
        num_requests, known = most if linked else 0, set[Ranges]()
        while num_requests:
            for ranges in self._list_ranges(linked or order, num_requests, slacks):
                if ranges not in known and self._costs.is_linked(ranges[0]):
                    known.add(ranges)
                    yield Pipeline(self._costs, *ranges)
            num_requests = min(num_requests - 1, int(num_requests * share))

    def _list_ranges(self, order: tuple[int, ...], num_requests: int, slacks: Sequence[float]) -> Iterator[Ranges]:
        self._effort.spend(len(order))
        if balanced := balance_ranges(self._costs, order, num_requests):
            yield balanced
            slowest_s = find_slowest(self._costs.price_stage(len(order), num_requests), balanced)
            for slack in slacks:
                self._effort.spend(len(order) * self._costs.num_layers**2 // CHEAP)
                if shorter := shorten_ranges(self._costs, order, num_requests, slack * slowest_s, self._tables):
                    yield shorter

"""Tabulates what each range of layers costs on a node, for dynamic programming over ranges."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from operator import add

from parallax_cluster.placement.cost_model import CostModel

MOST_KEPT = 500
"""The most tables that are kept: each has half as many numbers as layers squared."""
RANGES = 16
"""A table with this number of layers squared takes as long as balancing a stage."""
StageTable = Sequence[Sequence[float]]
"""By the end of the range, and then by its start below that: the cost, infinite if the stage cannot hold the layers."""


def tabulate_stage(costs: CostModel, node: int, num_stages: int, num_requests: int) -> StageTable:
    """Return the seconds that a node computes for one request with each range that fits for ``num_requests``."""
    price, most = costs.price_stage(num_stages, num_requests), costs.num_layers
    table: list[list[float]] = [[]]
    for stop in range(1, most + 1):
        column = [inf] * stop
        for start in reversed(costs.legal[: bisect_left(costs.legal, stop)]):
            if costs.count_fitting(node, start, stop) < num_requests:
                break
            column[start] = price(node, start, stop)
        table.append(column)
    if costs.count_fitting(node, 0, most) >= num_requests:  # shared weights count once there
        table[most][0] = price(node, 0, most)
    return table


def add_crossings(costs: CostModel, table: StageTable, before: int, node: int) -> StageTable:
    """Return the table of a node with the seconds of the link from the one before it, by the first layer."""
    crossing = [inf, *(costs.measure_crossing(before, node, cut) for cut in range(1, costs.num_layers))]
    return [list(map(add, column, crossing)) for column in table]


def limit_table(table: StageTable, most: float) -> StageTable:
    """Return a table without the ranges that cost more than ``most``."""
    return [[cost if cost <= most else inf for cost in column] for column in table]


@dataclass(slots=True)
class Effort:
    """The budget left for a search, in balanced stages of some 30 microseconds each."""

    left: int

    def spend(self, number: int) -> None:
        """Subtract some stages."""
        self.left -= number


class StageTables:
    """Keeps tables: the same node, requests and number of stages come again in many pipelines."""

    def __init__(self, costs: CostModel, effort: Effort | None = None) -> None:
        self._costs = costs
        self._effort = effort or Effort(0)
        self._kept: dict[tuple[int, int, int], StageTable] = {}

    def find(self, node: int, num_stages: int, num_requests: int) -> StageTable:
        """Return the table of a node; see `tabulate_stage`."""
        key = node, num_stages, num_requests
        if key not in self._kept:
            if len(self._kept) >= MOST_KEPT:
                self._kept.clear()
            self._effort.spend(self._costs.num_layers**2 // RANGES)
            self._kept[key] = tabulate_stage(self._costs, *key)
        return self._kept[key]

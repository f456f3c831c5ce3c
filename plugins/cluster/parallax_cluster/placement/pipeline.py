"""A pipeline of given ranges, and its predicted times by the number of its requests."""

from __future__ import annotations

from collections.abc import Hashable
from functools import cached_property
from itertools import pairwise
from math import inf
from typing import NamedTuple

from parallax_cluster.placement.cost_model import CostModel, PipelineCost
from parallax_core.api import LayerRange, PlacedStage

MULTIPLES = (1, 2, 4, 8, 16, 32)
"""The numbers of units of requests that may be given to a pipeline at once."""


class Portion(NamedTuple):
    """Further requests of a pipeline."""

    loss: float
    """The negative of what each of them adds to the objective on average."""
    number: int


NO_PORTION = Portion(0.0, 0)


class Pipeline:
    """A pipeline of given ranges, and its times by the number of its requests."""

    def __init__(self, costs: CostModel, order: tuple[int, ...], cuts: tuple[int, ...]) -> None:
        """Make the pipeline of the nodes of ``order``; ``cuts`` are the first layers of their stages, and the end."""
        self.order = order
        self.cuts = cuts
        self._costs = costs
        self._values = {0: 0.0}
        self._portions: dict[tuple[int, int], Portion] = {}
        self._measured: dict[int, PipelineCost] = {}

    @cached_property
    def kind(self) -> Hashable:
        """What its times depend on: pipelines of one kind have the same."""
        return *self._costs.describe_kind(self.order, self.cuts), self.max_requests

    def measure(self, num_requests: int) -> PipelineCost:
        """Return its times with ``num_requests`` at the same time, at least 1."""
        if num_requests not in self._measured:
            self._measured[num_requests] = self._costs.measure_pipeline(self.order, self.cuts, num_requests)
        return self._measured[num_requests]

    @cached_property
    def num_fitting(self) -> int:
        """The number of requests whose KV cache fits, at most those of the goal."""
        cuts = pairwise(self.cuts)
        fitting = min(self._costs.count_fitting(node, *cut) for node, cut in zip(self.order, cuts, strict=True))
        return int(max(0, min(fitting, self._costs.goal.concurrency)))

    @cached_property
    def max_requests(self) -> int:
        """The number of requests that memory and the limits of the goal allow."""
        low, high = 0, self.num_fitting
        if self._is_within(max(high, 1)):
            return high
        while low < high:
            middle = (low + high + 1) // 2
            if self._is_within(middle):
                low = middle
            else:
                high = middle - 1
        return low

    def _is_within(self, num_requests: int) -> bool:
        goal = self._costs.goal
        if goal.max_ttft_s == goal.max_token_s == inf:
            return True
        cost = self.measure(num_requests)
        return cost.ttft_s <= goal.max_ttft_s and cost.token_s <= goal.max_token_s

    def value(self, num_requests: int) -> float:
        """Return what these requests add to the objective: tokens per second, or the negative of their seconds."""
        if num_requests not in self._values:
            cost, is_throughput = self.measure(num_requests), self._costs.goal.objective == "throughput"
            self._values[num_requests] = cost.tokens_per_s if is_throughput else -num_requests * cost.request_s
        return self._values[num_requests]

    def find_portion(self, share: int, unit: int, most: int) -> Portion:
        """Return the best next requests of one that has ``share`` of them.

        Near the number of its stages, a pipeline gains nothing by a single request and much by several; so there are
        some multiples of ``unit`` to choose from.

        Args:
            share: the requests that it has.
            unit: the least number of further ones, unless there is no room for it.
            most: the number of further ones at most.
        """
        key = share, unit
        if key not in self._portions:
            self._portions[key] = self._find_portion(share, unit, self.max_requests - share)
        found = self._portions[key]
        return found if found.number <= most else self._find_portion(share, unit, min(most, self.max_requests - share))

    def _find_portion(self, share: int, unit: int, most: int) -> Portion:
        value, best = self.value(share), NO_PORTION
        for number in [num for factor in MULTIPLES if (num := factor * unit) <= most] or [most] * (most > 0):
            loss = (value - self.value(share + number)) / number
            if not best.number or loss < best.loss:
                best = Portion(loss, number)
            elif unit > 1 and share + number > len(self.order):  # beyond the number of stages, more gain less and less
                break
        return best

    def place(self) -> tuple[PlacedStage, ...]:
        """Return its stages as values of the contract."""
        cuts = pairwise(self.cuts)
        names = (self._costs.nodes[node].name for node in self.order)
        return tuple(PlacedStage(name, LayerRange(*cut)) for name, cut in zip(names, cuts, strict=True))

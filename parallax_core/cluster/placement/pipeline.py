"""A pipeline of given ranges, and its predicted times by the number of its requests."""

from __future__ import annotations

from functools import cached_property
from itertools import pairwise
from math import inf

from parallax_core.cluster.placement.cost_model import CostModel, PipelineCost
from parallax_core.contracts.placement import PlacedStage
from parallax_core.contracts.stage import LayerRange


class Pipeline:
    """A pipeline of given ranges, and its times by the number of its requests."""

    def __init__(self, costs: CostModel, order: tuple[int, ...], cuts: tuple[int, ...]) -> None:
        """Make the pipeline of the nodes of ``order``; ``cuts`` are the first layers of their stages, and the end."""
        self.order = order
        self.cuts = cuts
        self._costs = costs
        self._measured: dict[int, PipelineCost] = {}

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
        if num_requests == 0:
            return 0.0
        cost = self.measure(num_requests)
        return cost.tokens_per_s if self._costs.goal.objective == "throughput" else -num_requests * cost.request_s

    def place(self) -> tuple[PlacedStage, ...]:
        """Return its stages as values of the contract."""
        cuts = pairwise(self.cuts)
        names = (self._costs.nodes[node].name for node in self.order)
        return tuple(PlacedStage(name, LayerRange(*cut)) for name, cut in zip(names, cuts, strict=True))

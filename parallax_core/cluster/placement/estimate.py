"""Shares the requests of a goal among the pipelines of a placement, and predicts its speed."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from heapq import heappop, heappush
from itertools import pairwise
from math import inf

from parallax_core.cluster.placement.bottleneck import find_fullest, find_limit
from parallax_core.cluster.placement.cost_model import CostModel, PipelineCost
from parallax_core.contracts.placement import Estimate, PipelineEstimate, PlacedStage, Placement, PlacementProblem
from parallax_core.contracts.stage import LayerRange

MOST_PORTIONS = 64
"""Requests are shared out one by one, or in this number of portions if there are more."""
MOST_EXACT = 3000
"""Pipelines times requests squared up to which the best division is computed exactly."""
MULTIPLES = (1, 2, 4, 8, 16, 32)
"""The numbers of portions that may be given to a pipeline at once."""
Rating = tuple[float, float]
"""How good a placement is for the objective, and then how short its requests are; larger is better."""


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


def share_requests(pipelines: Sequence[Pipeline], concurrency: int) -> list[int]:
    """Return the number of requests of each pipeline, such that they reach most of the objective.

    Requests beyond what memory and limits allow are left out.
    """
    if len(pipelines) * concurrency**2 <= MOST_EXACT:
        return _share_exactly(pipelines, concurrency)
    return _share_greedily(pipelines, concurrency)


def _share_exactly(pipelines: Sequence[Pipeline], concurrency: int) -> list[int]:
    """Find the best division by dynamic programming over the requests of the pipelines so far."""
    best: dict[int, tuple[float, tuple[int, ...]]] = {0: (0.0, ())}
    for pipeline in pipelines:
        values = [pipeline.value(number) for number in range(pipeline.max_requests + 1)]
        longer: dict[int, tuple[float, tuple[int, ...]]] = {}
        for before, (value, shares) in best.items():
            for number, more in enumerate(values[: concurrency - before + 1]):
                if before + number not in longer or value + more > longer[before + number][0]:
                    longer[before + number] = (value + more, (*shares, number))
        best = longer
    return list(best[max(best)][1])


def _share_greedily(pipelines: Sequence[Pipeline], concurrency: int) -> list[int]:
    """Give the next requests to the pipeline where they add most to the objective, each.

    One by one, this is the best division if each pipeline gains less by each further request (Fox, "Discrete
    optimization via marginal analysis", Management Science 1966). Near the number of its stages, a pipeline gains
    nothing by a single request and much by several; so the best of some numbers of requests is given at once.
    """
    shares, left = [0] * len(pipelines), concurrency
    portion = max(1, concurrency // MOST_PORTIONS)
    gains: list[tuple[float, int, int]] = []

    def offer(rank: int) -> None:
        pipeline, share = pipelines[rank], shares[rank]
        most, value = min(left, pipeline.max_requests - share), pipeline.value(share)
        numbers = [num for factor in MULTIPLES if (num := factor * portion) <= most] or ([most] if most > 0 else [])
        if numbers:
            heappush(gains, min(((value - pipeline.value(share + num)) / num, rank, num) for num in numbers))

    for rank in range(len(pipelines)):
        offer(rank)
    while left and gains:
        _, rank, num = heappop(gains)
        num = min(num, left)
        shares[rank] += num
        left -= num
        offer(rank)
    return shares


def score_pipelines(costs: CostModel, pipelines: Sequence[Pipeline]) -> Rating:
    """Return how good pipelines are for the objective; see `Rating`."""
    goal, shares = costs.goal, share_requests(pipelines, costs.goal.concurrency)
    measured = [pipeline.measure(share) for pipeline, share in zip(pipelines, shares, strict=True) if share]
    if not measured:
        return 0.0, 0.0
    tokens_per_s, num_requests = sum(cost.tokens_per_s for cost in measured), sum(shares)
    mean_s = sum(cost.num_requests * cost.request_s for cost in measured) / num_requests
    if goal.objective == "throughput":
        return tokens_per_s, -mean_s
    reached = min(1.0, tokens_per_s / goal.min_tokens_per_s) if goal.min_tokens_per_s else 1.0
    return num_requests * reached, -mean_s


class PlacementEstimator:
    """Predicts the speed of placements of one problem; it is the `Estimator` that policies get."""

    def __init__(self, problem: PlacementProblem) -> None:
        self.costs = CostModel(problem)
        self._indices = {node.name: index for index, node in enumerate(problem.cluster.nodes)}

    def read_pipelines(self, placement: Placement) -> list[Pipeline]:
        """Return the pipelines of a placement.

        Raises:
            ValueError: if it is not valid; the message names the node or the layers.
        """
        pipelines = [self._read_pipeline(stages) for stages in placement.pipelines]
        names = [stage.node for stages in placement.pipelines for stage in stages]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            message = f"node {twice[0]!r} has more than one stage"
            raise ValueError(message)
        return pipelines

    def estimate(self, placement: Placement) -> Estimate:
        """Return the predicted speed of a valid placement; see `parallax_core.api.Estimator`."""
        pipelines = self.read_pipelines(placement)
        shares = share_requests(pipelines, self.costs.goal.concurrency)
        found = [self._describe(pipeline, share) for pipeline, share in zip(pipelines, shares, strict=True)]
        total = sum(shares)

        def average(name: str) -> float:
            return sum(each.num_requests * getattr(each, name) for each in found) / total if total else 0.0

        return Estimate(
            pipelines=tuple(found),
            num_requests=total,
            tokens_per_s=sum(each.tokens_per_s for each in found),
            ttft_s=average("ttft_s"),
            token_s=average("token_s"),
            request_s=average("request_s"),
        )

    def _describe(self, pipeline: Pipeline, num_requests: int) -> PipelineEstimate:
        cost = pipeline.measure(max(num_requests, 1))
        limit, where = find_limit(self.costs, pipeline.order, pipeline.cuts, cost)
        if num_requests == pipeline.max_requests < self.costs.goal.concurrency and limit not in {"compute", "link"}:
            limit, where = "limits", ""
            if pipeline.max_requests == pipeline.num_fitting:
                limit, where = "memory", find_fullest(self.costs, pipeline.order, pipeline.cuts)
        requests_per_s = num_requests / cost.request_s
        return PipelineEstimate(
            max_requests=pipeline.max_requests,
            num_requests=num_requests,
            tokens_per_s=cost.tokens_per_s if num_requests else 0.0,
            ttft_s=cost.ttft_s,
            token_s=cost.token_s,
            request_s=cost.request_s,
            limit=limit,
            limit_at=where,
            busy=tuple(stage_s * requests_per_s for stage_s in cost.stage_s),
        )

    def _read_pipeline(self, stages: Sequence[PlacedStage]) -> Pipeline:
        for stage in stages:
            if stage.node not in self._indices:
                message = f"there is no node {stage.node!r}"
                raise ValueError(message)
        cuts = [0]
        for stage in stages:
            if stage.layers.start != cuts[-1] or len(stage.layers) < 1:
                message = f"node {stage.node!r} has layers {stage.layers.start} to {stage.layers.stop} after {cuts[-1]}"
                raise ValueError(message)
            cuts.append(stage.layers.stop)
        if cuts[-1] != self.costs.num_layers:
            message = f"a pipeline ends at layer {cuts[-1]}, and the model has {self.costs.num_layers} layers"
            raise ValueError(message)
        pipeline = Pipeline(self.costs, tuple(self._indices[stage.node] for stage in stages), tuple(cuts))
        if pipeline.num_fitting < 1:
            full = next(stage.node for stage in stages if not self._fits(stage))
            message = f"node {full!r} has too little memory for its layers and one request"
            raise ValueError(message)
        return pipeline

    def _fits(self, stage: PlacedStage) -> bool:
        index = self._indices[stage.node]
        return self.costs.count_fitting(index, stage.layers.start, stage.layers.stop) >= 1

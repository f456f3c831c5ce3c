"""Checks placements of a problem, and predicts their speed."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from parallax_cluster.placement.bottleneck import find_fullest, find_limit
from parallax_cluster.placement.cost_model import CostModel, PipelineCost
from parallax_cluster.placement.leased import (
    LeasedPipeline,
    check_shared,
    count_leased,
    has_leases,
    shares_nodes,
    slow_down,
)
from parallax_cluster.placement.pipeline import Pipeline
from parallax_cluster.placement.shares import share_requests
from parallax_core.api import Estimate, PipelineEstimate, PlacedStage, Placement, PlacementProblem

MOST_ALONE = 20_000
"""The most requests that are divided one by one."""


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
        check_shared(placement)
        return pipelines

    def estimate(self, placement: Placement) -> Estimate:
        """Return the predicted speed of a valid placement; see `parallax_core.api.Estimator`."""
        pipelines = self.read_pipelines(placement)
        shares = share_requests(pipelines, self.costs.goal, max(1, self.costs.goal.concurrency // MOST_ALONE))
        times = [pipeline.measure(max(share, 1)) for pipeline, share in zip(pipelines, shares, strict=True)]
        if has_leases(placement):
            times = slow_down(pipelines, times, shares)
        found = [self._describe(*each) for each in zip(pipelines, shares, times, strict=True)]
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
            response_s=average("request_s") * self.costs.goal.concurrency / total if total else 0.0,
        )

    def _describe(self, pipeline: Pipeline, num_requests: int, cost: PipelineCost) -> PipelineEstimate:
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
            if stage.lease is not None and not self.costs.nodes[self._indices[stage.node]].leases:
                message = f"node {stage.node!r} has no leases"
                raise ValueError(message)
        cuts = self._read_cuts(stages)
        self._check_links(stages)
        order, leases = tuple(self._indices[stage.node] for stage in stages), tuple(stage.lease for stage in stages)
        ends, is_shared = tuple(cuts), shares_nodes(stages)
        pipeline = LeasedPipeline(self.costs, order, ends, leases) if is_shared else Pipeline(self.costs, order, ends)
        if pipeline.num_fitting < 1:
            full = next(stage.node for stage in stages if not self._fits(stage))
            message = f"node {full!r} has too little memory for its layers and one request"
            raise ValueError(message)
        return pipeline

    def _read_cuts(self, stages: Sequence[PlacedStage]) -> list[int]:
        cuts = [0]
        for stage in stages:
            if stage.layers.start != cuts[-1] or len(stage.layers) < 1:
                message = f"node {stage.node!r} has layers {stage.layers.start} to {stage.layers.stop} after {cuts[-1]}"
                raise ValueError(message)
            cuts.append(stage.layers.stop)
        if cuts[-1] != self.costs.num_layers:
            message = f"a pipeline ends at layer {cuts[-1]}, and the model has {self.costs.num_layers} layers"
            raise ValueError(message)
        if illegal := [cut for cut in cuts if cut not in self.costs.legal]:
            message = f"no stage may begin with layer {illegal[0]}: the model cannot be cut there"
            raise ValueError(message)
        return cuts

    def _check_links(self, stages: Sequence[PlacedStage]) -> None:
        for one, other in pairwise(stage.node for stage in stages):
            if not self.costs.reaches(self._indices[one], self._indices[other]):
                message = f"node {one!r} does not reach node {other!r}"
                raise ValueError(message)

    def _fits(self, stage: PlacedStage) -> bool:
        cut = stage.layers.start, stage.layers.stop
        return count_leased(self.costs, self._indices[stage.node], cut, stage.lease) >= 1

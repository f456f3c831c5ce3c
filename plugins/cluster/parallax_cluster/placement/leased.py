"""Pipelines that share nodes through leases: their memory, and how they slow each other down."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from itertools import pairwise

from parallax_cluster.placement.cost_model import CostModel, PipelineCost, count_batch
from parallax_cluster.placement.pipeline import Pipeline
from parallax_core.api import SHARE_ROUNDING, PlacedStage, Placement, StageLease

NUM_ROUNDS = 60
"""The rounds in which the rates of pipelines that share nodes settle."""
MOST_BUSY = 0.95
"""The largest share of a node's time that other pipelines are taken to need."""
Leases = tuple[StageLease | None, ...]
"""Of the stages of a pipeline; None: the stage shares nothing."""


class LeasedPipeline(Pipeline):
    """A pipeline some of whose stages are leases."""

    def __init__(self, costs: CostModel, order: tuple[int, ...], cuts: tuple[int, ...], leases: Leases) -> None:
        """Make the pipeline; see `Pipeline`."""
        super().__init__(costs, order, cuts)
        self.leases = leases

    @cached_property
    def num_fitting(self) -> int:
        """The number of requests whose KV cache fits, at most those of the goal."""
        stages = zip(self.order, pairwise(self.cuts), self.leases, strict=True)
        fitting = min(count_leased(self._costs, *stage) for stage in stages)
        return int(max(0, min(fitting, self._costs.goal.concurrency)))

    def place(self) -> tuple[PlacedStage, ...]:
        """Return its stages as values of the contract."""
        pairs = zip(super().place(), self.leases, strict=True)
        return tuple(PlacedStage(stage.node, stage.layers, lease) for stage, lease in pairs)


def count_leased(costs: CostModel, node: int, cut: tuple[int, int], lease: StageLease | None) -> float:
    """Return the number of requests whose KV cache fits into a lease of a node; see `CostModel.count_fitting`."""
    if lease is None:
        return costs.count_fitting(node, *cut)
    free = costs.speeds[node].memory - costs.measure_weights(lease.holds.start, lease.holds.stop)
    kept = costs.kept[cut[1]] - costs.kept[cut[0]]
    if free < 0 or not kept:
        return float("inf") if free >= 0 else -1.0
    return lease.memory_share * free // kept


def has_leases(placement: Placement) -> bool:
    """Return whether pipelines of a placement share nodes."""
    return any(shares_nodes(stages) for stages in placement.pipelines)


def shares_nodes(stages: Iterable[PlacedStage]) -> bool:
    """Return whether a pipeline of these stages shares nodes with others."""
    return any(stage.lease is not None for stage in stages)


def check_shared(placement: Placement) -> None:
    """Check the nodes that are in several pipelines.

    Raises:
        ValueError: if the leases of a node do not fit each other; the message names it.
    """
    found: dict[str, list[PlacedStage]] = {}
    for stage in (stage for stages in placement.pipelines for stage in stages):
        found.setdefault(stage.node, []).append(stage)
    for node in sorted(found):
        stages = found[node]
        leases = [stage.lease for stage in stages if stage.lease is not None]
        if len(stages) > 1 and len(leases) < len(stages):
            message = f"node {node!r} has more than one stage, and not a lease for each"
            raise ValueError(message)
        numbers = {lease.number for lease in leases if lease.number >= 0}
        if len(numbers) < len(leases) or len({lease.holds for lease in leases}) > 1:
            message = f"the leases of node {node!r} do not have a number each, and the same layers to share"
            raise ValueError(message)
        shares = [lease.memory_share for lease in leases]
        if not (all(share > 0 for share in shares) and sum(shares) <= 1 + SHARE_ROUNDING):
            message = f"the leases of node {node!r} take more than its memory, or none of it"
            raise ValueError(message)
        if not all(each.holds.start <= each.layers.start and each.layers.stop <= each.holds.stop for each in stages):
            message = f"a lease of node {node!r} has layers that the node does not hold"
            raise ValueError(message)


def slow_down(
    pipelines: Sequence[Pipeline], costs: Sequence[PipelineCost], shares: Sequence[int]
) -> list[PipelineCost]:
    """Return the times of pipelines with what they wait for each other on the nodes that they share.

    A node runs the steps of its leases in turn, so that each gets the time that the others leave (processor sharing:
    Kleinrock, Queueing Systems II, 1976, section 4.4). How much they leave depends on their rates, and these on how
    much they wait; both are found by turns.

    Args:
        pipelines: all that there are.
        costs: the times of each, as if it were alone.
        shares: the number of requests of each; a pipeline without requests delays none.
    """
    seconds = [cost.request_s for cost in costs]
    for _ in range(NUM_ROUNDS):
        busy: dict[int, float] = {}
        for pipeline, cost, share, request_s in zip(pipelines, costs, shares, seconds, strict=True):
            for node, stage_s in zip(pipeline.order, cost.stage_s, strict=True):
                busy[node] = busy.get(node, 0.0) + share * stage_s / request_s
        seconds = [
            (request_s + _wait(pipeline, cost, request_s, busy)) / 2
            for pipeline, cost, request_s in zip(pipelines, costs, seconds, strict=True)
        ]
    return [_stretch(cost, request_s) for cost, request_s in zip(costs, seconds, strict=True)]


def _wait(pipeline: Pipeline, cost: PipelineCost, request_s: float, busy: dict[int, float]) -> float:
    """Return the seconds of a request of a pipeline, if nodes are busy for these shares of the time."""
    batch, waiting_s, slowest_s = count_batch(len(pipeline.order), cost.num_requests), 0.0, 0.0
    for node, stage_s in zip(pipeline.order, cost.stage_s, strict=True):
        others = min(MOST_BUSY, max(0.0, busy[node] - cost.num_requests * stage_s / request_s))
        waiting_s += batch * stage_s * others / (1 - others)
        slowest_s = max(slowest_s, stage_s / (1 - others))
    return max(cost.request_s + waiting_s, cost.num_requests * slowest_s)


def _stretch(cost: PipelineCost, request_s: float) -> PipelineCost:
    factor = request_s / cost.request_s
    return cost._replace(
        request_s=request_s,
        tokens_per_s=cost.tokens_per_s / factor,
        ttft_s=cost.ttft_s * factor,
        token_s=cost.token_s * factor,
    )

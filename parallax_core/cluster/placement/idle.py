"""Says why nodes have no layers."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf

from parallax_core.cluster.placement.cost_model import CostModel
from parallax_core.cluster.placement.estimate import PlacementEstimator
from parallax_core.cluster.placement.pipeline import Pipeline
from parallax_core.cluster.placement.ranges import Ranges, balance_ranges, shorten_ranges
from parallax_core.cluster.placement.shares import Rating, rate_pipelines
from parallax_core.contracts.placement import Placement, PlacementProblem
from parallax_core.pages.budget import format_bytes

MOST_PIPELINES = 8
"""The most pipelines that a node is tried in."""


def explain_idle(problem: PlacementProblem, placement: Placement) -> dict[str, str]:
    """Return the reason for each node without layers, by its name."""
    used = {stage.node for stages in placement.pipelines for stage in stages}
    estimator = PlacementEstimator(problem)
    pipelines = estimator.read_pipelines(placement)
    idle = [index for index, node in enumerate(problem.cluster.nodes) if node.name not in used]
    return {problem.cluster.nodes[index].name: _explain(estimator.costs, index, pipelines) for index in idle}


def _explain(costs: CostModel, node: int, pipelines: list[Pipeline]) -> str:
    layers = range(costs.num_layers)
    if all(costs.count_fitting(node, layer, layer + 1) < 1 for layer in layers):
        needed = min(costs.weights[n + 1] - costs.weights[n] + costs.kept[n + 1] - costs.kept[n] for n in layers)
        free = format_bytes(int(costs.speeds[node].memory))
        return f"its memory of {free} is too small for a layer and one request, which take {format_bytes(int(needed))}"
    if not pipelines:
        return "all nodes together have too little memory for the model"
    scores = [rate_pipelines(changed, costs.goal) for changed in _list_uses(costs, node, pipelines)]
    if not scores:
        return "no pipeline has layers that fit into its memory"
    best, now = max(scores), rate_pipelines(pipelines, costs.goal)
    if best[0] == now[0]:
        return f"with it a request would take {-best[1]:.3g} s on average, and without it takes {-now[1]:.3g} s"
    return f"with it there would be {_describe(costs, best)}, and without it there are {_describe(costs, now)}"


def _describe(costs: CostModel, score: Rating) -> str:
    if costs.goal.objective == "throughput":
        return f"{score[0]:.4g} tokens/s"
    return f"{score[0]:.0%} of the tokens/s asked for"


def _list_uses(costs: CostModel, node: int, pipelines: list[Pipeline]) -> Iterator[list[Pipeline]]:
    """Yield the pipelines with the node as one more, and with a stage of one of them on it as well."""
    first = enumerate(pipelines[:MOST_PIPELINES])
    uses = [((), pipelines), *((each.order, pipelines[:rank] + pipelines[rank + 1 :]) for rank, each in first)]
    for order, others in uses:
        for place in range(len(order) + 1):
            changed = (*order[:place], node, *order[place:])
            for ranges in _list_ranges(costs, changed):
                yield [*others, Pipeline(costs, *ranges)]


def _list_ranges(costs: CostModel, order: tuple[int, ...]) -> Iterator[Ranges]:
    num_requests = costs.goal.concurrency
    while num_requests:
        for ranges in (
            balance_ranges(costs, order, num_requests),
            shorten_ranges(costs, order, num_requests, inf),
        ):
            if ranges and len(ranges[0]) == len(order):
                yield ranges
        num_requests //= 4

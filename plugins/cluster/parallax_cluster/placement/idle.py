"""Says why nodes have no layers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

from parallax_cluster.placement.cost_model import CostModel
from parallax_cluster.placement.estimate import PlacementEstimator
from parallax_cluster.placement.idle_use import IdleUses
from parallax_cluster.placement.pipeline import Pipeline
from parallax_cluster.placement.seeds import can_hold
from parallax_cluster.placement.shares import Rating, is_better, rate_pipelines
from parallax_cluster.placement.stage_table import Effort
from parallax_core.api import Placement, PlacementProblem, format_bytes

EXPLAINING = 100_000
"""The effort for trying what idle nodes could do."""
MOST_TOLD = 8
"""The most nodes that an explanation names."""


def explain_idle(problem: PlacementProblem, placement: Placement) -> dict[str, str]:
    """Return the reason for each node without layers, by its name."""
    used = {stage.node for stages in placement.pipelines for stage in stages}
    estimator = PlacementEstimator(problem)
    costs, pipelines = estimator.costs, estimator.read_pipelines(placement)
    idle = [index for index, node in enumerate(problem.cluster.nodes) if node.name not in used]
    uses, now = IdleUses(costs, Effort(EXPLAINING)), rate_pipelines(pipelines, problem.goal)
    return {costs.nodes[index].name: _explain(costs, index, (pipelines, now), uses) for index in idle}


def _explain(costs: CostModel, node: int, rated: tuple[list[Pipeline], Rating], uses: IdleUses) -> str:
    pipelines, now = rated
    if not can_hold(costs, node):
        parts = pairwise(costs.legal)
        needed = min(costs.weights[n] - costs.weights[m] + costs.kept[n] - costs.kept[m] for m, n in parts)
        free = format_bytes(int(costs.speeds[node].memory))
        return f"its memory of {free} is too small for a layer and one request, which take {format_bytes(int(needed))}"
    found = uses.find_best(node, pipelines) if pipelines else None
    if not found:
        return _explain_unfit(costs, node, pipelines, was_tried=uses.has_effort)
    best = found[0]
    is_gain = is_better(best, now)
    if not is_gain and not is_better(now, best):
        return f"it would get none of the requests (at once: {costs.goal.concurrency}): others answer them sooner"
    little = "it would gain too little: " if is_gain else ""
    if best[0] == now[0]:
        return f"{little}with it a request would take {-best[1]:.3g} s on average, and without it takes {-now[1]:.3g} s"
    return f"{little}with it there would be {_describe(costs, best)}, and without it there are {_describe(costs, now)}"


def _explain_unfit(costs: CostModel, node: int, pipelines: list[Pipeline], *, was_tried: bool) -> str:
    """Return why a node that can hold a layer has a place in no pipeline, as far as it was looked for."""
    if pipelines and not was_tried:
        return "it does not hold the model alone, and with so many nodes no use in other pipelines was looked for"
    others = {each for pipeline in pipelines for each in pipeline.order} if pipelines else range(len(costs.nodes))
    gaps = _describe_gaps(costs, node, others)
    if not pipelines:
        return gaps or "all nodes together have too little memory for the model"
    return f"no pipeline has layers that fit into its memory{f', and {gaps}' if gaps else ''}"


def _describe_gaps(costs: CostModel, node: int, others: Iterable[int]) -> str:
    """Return, in words, the missing links between a node and ``others``, by direction; empty without any."""
    listed = sorted(others) if costs.has_gaps else []
    reached = [costs.nodes[other].name for other in listed if not costs.reaches(node, other)]
    reaching = [costs.nodes[other].name for other in listed if not costs.reaches(other, node)]
    told = [("it does not reach", reached), ("it is not reached by", reaching)]
    return " and ".join(f"{words} {name_some(names)}" for words, names in told if names)


def name_some(names: Sequence[str]) -> str:
    """Return names in words, at most `MOST_TOLD` of them and the number of the others."""
    more = f" and {len(names) - MOST_TOLD} more" if len(names) > MOST_TOLD else ""
    return f"{', '.join(names[:MOST_TOLD])}{more}"


def _describe(costs: CostModel, score: Rating) -> str:
    if costs.goal.objective == "throughput":
        return f"{score[0]:.4g} tokens/s"
    return f"{score[0]:.0%} of the tokens/s asked for"

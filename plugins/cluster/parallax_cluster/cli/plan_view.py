"""Shows plans: as text for a terminal, and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from parallax_cluster.placement.demand import weigh_layers
from parallax_core.api import Estimate, PipelineEstimate, PlacedStage, Placement, PlacementProblem, format_bytes
from parallax_core.api.cli import align

LIMITS = {
    "compute": "compute",
    "bandwidth": "memory bandwidth",
    "overhead": "fixed time per step",
    "link": "link bandwidth",
    "latency": "round trips",
    "concurrency": "too few requests at the same time",
    "memory": "memory for the KV cache",
    "limits": "the limits of the goal",
}
"""Names of what limits a pipeline, by `Resource`."""
MOST_IDLE = 20
"""The most idle nodes to list one by one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """A placement with its prediction."""

    change: str
    """The change planned for, as in ``--what-if``; empty for none."""
    problem: PlacementProblem
    placement: Placement
    estimate: Estimate
    idle: dict[str, str]
    """Why nodes have no layers, by their names."""


def describe_plan(plan: Plan) -> dict[str, Any]:
    """Return a plan as a JSON object."""
    pairs = zip(plan.placement.pipelines, plan.estimate.pipelines, strict=True)
    totals = {name: value for name, value in asdict(plan.estimate).items() if name != "pipelines"}
    return {
        "what_if": plan.change or None,
        "fits": bool(plan.placement.pipelines),
        **totals,
        "pipelines": [_describe_pipeline(plan, stages, estimate) for stages, estimate in pairs],
        "idle": [{"node": name, "reason": reason} for name, reason in plan.idle.items()],
    }


def _describe_pipeline(plan: Plan, stages: tuple[PlacedStage, ...], estimate: PipelineEstimate) -> dict[str, Any]:
    figures = {name: value for name, value in asdict(estimate).items() if name != "busy"}
    shown = [
        {
            "node": stage.node,
            "layers": [stage.layers.start, stage.layers.stop],
            "weights_bytes": _count_weights(plan, stage),
            "taken_bytes_per_token": plan.problem.model.cross(stage.layers.start) if stage.layers.start else 0,
            "busy": busy,
            "lease": _describe_lease(stage),
        }
        for stage, busy in zip(stages, estimate.busy, strict=True)
    ]
    return {**figures, "stages": shown}


def _describe_lease(stage: PlacedStage) -> dict[str, Any] | None:
    """Return what a stage has of a node that it shares; None: it shares nothing."""
    if (lease := stage.lease) is None:
        return None
    holds = [lease.holds.start, lease.holds.stop]
    return {"number": lease.number, "holds": holds, "memory_share": lease.memory_share}


def render_plans(model: str, plans: list[Plan]) -> Iterator[str]:
    """Yield the lines of plans for a terminal, one plan after the other, with the gain over the one before."""
    goal = plans[0].problem.goal
    tokens = f"{goal.prompt_tokens} + {goal.output_tokens} tokens"
    yield f"{model}, for {goal.objective}; requests at once: {goal.concurrency}, of {tokens} each"
    for rank, plan in enumerate(plans):
        yield ""
        if plan.change:
            yield f"what if {plan.change}"
        yield from _render_plan(plan)
        if rank and (before := plans[rank - 1].estimate).num_requests and plan.estimate.num_requests:
            more, longer = plan.estimate.tokens_per_s / before.tokens_per_s, plan.estimate.request_s / before.request_s
            yield f"compared   {more:.2f} times the tokens/s, and a request takes {longer:.2f} times the time"


def _render_plan(plan: Plan) -> Iterator[str]:
    if plan.placement.pipelines:
        yield from align([("PIPELINE", "NODE", "LAYERS", "WEIGHTS", "BUSY"), *_list_stages(plan)])
        yield ""
        total = plan.estimate
        yield (
            f"predicted  {total.tokens_per_s:.4g} tokens/s, first token after {_show_time(total.ttft_s)}, then "
            f"{_show_time(total.token_s)} per token; requests at once: {total.num_requests}"
        )
        if crossing := sorted({size for stages in plan.placement.pipelines for size in _list_crossings(plan, stages)}):
            sizes = format_bytes(crossing[0]) + (f" to {format_bytes(crossing[-1])}" if len(crossing) > 1 else "")
            yield f"between    stages {sizes} for each token"
        for rank, each in enumerate(total.pipelines, 1):
            where = f" of {each.limit_at}" if each.limit_at else ""
            yield f"limit      pipeline {rank}: {LIMITS[each.limit]}{where}"
    else:
        yield "the model does not fit"
    for name, reason in list(plan.idle.items())[:MOST_IDLE]:
        yield f"idle       {name}: {reason}"
    if len(plan.idle) > MOST_IDLE:
        yield f"idle       {len(plan.idle) - MOST_IDLE} nodes more; --json lists all"


def _list_stages(plan: Plan) -> Iterator[tuple[str, ...]]:
    for rank, (stages, estimate) in enumerate(zip(plan.placement.pipelines, plan.estimate.pipelines, strict=True), 1):
        for number, (stage, busy) in enumerate(zip(stages, estimate.busy, strict=True)):
            layers = f"{stage.layers.start}-{stage.layers.stop}"
            shown = "" if number else str(rank)
            share = f" ({stage.lease.memory_share:.0%} of its KV memory)" if stage.lease is not None else ""
            yield shown, stage.node + share, layers, format_bytes(_count_weights(plan, stage)), f"{busy:.0%}"


def _list_crossings(plan: Plan, stages: Sequence[PlacedStage]) -> Iterator[int]:
    """Yield the bytes of a token that go to each stage but the first."""
    yield from (plan.problem.model.cross(stage.layers.start) for stage in stages[1:])


def _count_weights(plan: Plan, stage: PlacedStage) -> int:
    return weigh_layers(plan.problem.model, stage.layers)


def _show_time(seconds: float) -> str:
    return f"{seconds:.3g} s" if seconds >= 1 else f"{seconds * 1e3:.3g} ms"

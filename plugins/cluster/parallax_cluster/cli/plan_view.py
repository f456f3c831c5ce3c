"""Shows plans: as text for a terminal, and as JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import typer

from parallax_cluster.placement.bottleneck import MOSTLY
from parallax_cluster.placement.cost_model import CostModel
from parallax_cluster.placement.demand import weigh_layers
from parallax_cluster.placement.stage_look import find_origin, find_range, look_at_stages
from parallax_core.api import (
    Estimate,
    LayerRange,
    PipelineEstimate,
    PlacedStage,
    Placement,
    PlacementProblem,
    format_bytes,
    make_printable,
)
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
MOST_NAME = 60
"""The most letters of a name to show."""
MOST_STAGES = 40
"""The most stages to list one by one."""
BAR = 10
"""The letters of a bar for a stage that is always busy."""


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
    costs, speed = CostModel(plan.problem), plan.estimate.tokens_per_s
    return {
        "what_if": plan.change or None,
        "fits": bool(plan.placement.pipelines),
        **totals,
        "tokens_per_s_range": [factor * speed for factor in find_range(plan.problem, plan.placement)],
        "pipelines": [_describe_pipeline(plan, costs, stages, estimate) for stages, estimate in pairs],
        "idle": [{"node": name, "reason": reason} for name, reason in plan.idle.items()],
    }


def _describe_pipeline(
    plan: Plan, costs: CostModel, stages: tuple[PlacedStage, ...], estimate: PipelineEstimate
) -> dict[str, Any]:
    figures = {name: value for name, value in asdict(estimate).items() if name != "busy"}
    shown = [
        {
            "node": stage.node,
            "layers": [stage.layers.start, stage.layers.stop],
            "weights_bytes": _count_weights(plan, stage),
            "taken_bytes_per_token": plan.problem.model.cross(stage.layers.start) if stage.layers.start else 0,
            "free_bytes": look.free,
            "hop_s": look.hop_s,
            "figures": look.origin,
            "busy": busy,
            "lease": _describe_lease(stage),
        }
        for stage, busy, look in zip(stages, estimate.busy, look_at_stages(costs, stages, estimate), strict=True)
    ]
    return {**figures, "stages": shown}


def _describe_lease(stage: PlacedStage) -> dict[str, Any] | None:
    """Return what a stage has of a node that it shares; None: it shares nothing."""
    if (lease := stage.lease) is None:
        return None
    holds = [lease.holds.start, lease.holds.stop]
    return {"number": lease.number, "holds": holds, "memory_share": lease.memory_share}


def render_plans(model: str, plans: list[Plan], basis: str, *, styled: bool = False) -> Iterator[str]:
    """Yield the lines of plans for a terminal, one plan after the other, with the gain over the one before.

    Args:
        model: its name.
        plans: for the model.
        basis: how its weights were counted, in words.
        styled: with colour and bars.
    """
    problem = plans[0].problem
    yield _describe_goal(model, problem)
    weights = weigh_layers(problem.model, LayerRange(0, len(problem.model.layers)))
    yield f"weights: {format_bytes(weights)} {basis}"
    for rank, plan in enumerate(plans):
        yield ""
        if plan.change:
            yield f"what if {plan.change}"
        yield from _render_plan(plan, styled=styled)
        if rank and (before := plans[rank - 1].estimate).num_requests and plan.estimate.num_requests:
            more, longer = plan.estimate.tokens_per_s / before.tokens_per_s, plan.estimate.request_s / before.request_s
            yield f"compared   {more:.2f} times the tokens/s, and a request takes {longer:.2f} times the time"


def _describe_goal(model: str, problem: PlacementProblem) -> str:
    goal = problem.goal
    tokens = f"{goal.prompt_tokens} + {goal.output_tokens} tokens"
    return f"{model}, for {goal.objective}; requests at once: {goal.concurrency}, of {tokens} each"


def rank_plans(plan: Plan, changed: Sequence[Plan]) -> Iterator[str]:
    """Yield a table of plans after changes, the best for the goal first, beside the plan without any."""
    if not changed:
        return
    ranked = sorted((plan, *changed), key=_rate, reverse=True)
    rows = [
        (make_printable(each.change, MOST_NAME) or "as it is", *_show_speed(each, plan), _count_idle(each))
        for each in ranked
    ]
    yield ""
    yield from align([("CHANGE", "TOKENS/S", "TIMES", "FIRST TOKEN", "PER TOKEN", "IDLE"), *rows])


def _show_speed(plan: Plan, base: Plan) -> tuple[str, ...]:
    """Return how fast a plan is, and beside another; dashes: it serves nothing."""
    estimate = plan.estimate
    if not estimate.num_requests:
        return ("-",) * 4
    times = map(show_time, (estimate.ttft_s, estimate.token_s))
    return f"{estimate.tokens_per_s:.4g}", _compare(plan, base), *times


def _rate(plan: Plan) -> tuple[float, float]:
    """Return how good a plan is for its goal."""
    estimate = plan.estimate
    speed = -estimate.response_s if plan.problem.goal.objective == "latency" else estimate.tokens_per_s
    return (speed, -estimate.request_s) if estimate.num_requests else (float("-inf"), 0.0)


def _compare(plan: Plan, base: Plan) -> str:
    before = base.estimate.tokens_per_s
    return f"{plan.estimate.tokens_per_s / before:.2f}" if before else "-"


def _count_idle(plan: Plan) -> str:
    return f"{len(plan.idle)} of {len(plan.problem.cluster.nodes)}"


def _render_plan(plan: Plan, *, styled: bool) -> Iterator[str]:
    if plan.placement.pipelines:
        yield from _render_stages(plan, styled=styled)
        yield ""
        yield from _render_totals(plan)
        yield from _render_limits(plan)
    else:
        yield "the model does not fit"
    for name, reason in list(plan.idle.items())[:MOST_IDLE]:
        yield f"idle       {make_printable(name, MOST_NAME)}: {reason}"
    if len(plan.idle) > MOST_IDLE:
        yield f"idle       {len(plan.idle) - MOST_IDLE} nodes more; --json lists all"


def _render_stages(plan: Plan, *, styled: bool) -> Iterator[str]:
    """Yield the table of stages; layers are counted from 0, and the last number is that of the next layer."""
    rows, looks, costs = list[tuple[str, ...]](), list[float](), CostModel(plan.problem)
    for rank, (stages, estimate) in enumerate(zip(plan.placement.pipelines, plan.estimate.pipelines, strict=True), 1):
        if rows and len(rows) + len(stages) > MOST_STAGES:
            break
        rows += _list_stages(plan, costs, rank, stages, estimate)
        looks += estimate.busy
    lines = list(align([("PIPELINE", "NODE", "LAYERS", "WEIGHTS", "FREE", "HOP", "FIGURES", "BUSY"), *rows]))
    yield lines[0]
    for line, busy in zip(lines[1:], looks, strict=True):
        bar = "█" * round(min(busy, 1.0) * BAR)
        yield (
            f"{line:{max(map(len, lines))}}  {typer.style(bar, fg='yellow' if busy >= MOSTLY else 'green')}"
            if styled
            else line
        )
    if (left := sum(map(len, plan.placement.pipelines)) - len(rows)) > 0:
        yield f"and {left} stages more, {len(plan.placement.pipelines)} pipelines in all; --json lists all"


def _list_stages(
    plan: Plan, costs: CostModel, rank: int, stages: Sequence[PlacedStage], estimate: PipelineEstimate
) -> Iterator[tuple[str, ...]]:
    looks = look_at_stages(costs, stages, estimate)
    for number, (stage, busy, look) in enumerate(zip(stages, estimate.busy, looks, strict=True)):
        share = f" ({stage.lease.memory_share:.0%} of its KV memory)" if stage.lease is not None else ""
        yield (
            "" if number else str(rank),
            make_printable(stage.node, MOST_NAME) + share,
            f"{stage.layers.start}-{stage.layers.stop}",
            format_bytes(_count_weights(plan, stage)),
            format_bytes(look.free),
            show_time(look.hop_s) if number else "",
            look.origin,
            f"{busy:.0%}",
        )


def _render_totals(plan: Plan) -> Iterator[str]:
    total, (least, most) = plan.estimate, find_range(plan.problem, plan.placement)
    yield (
        f"predicted  {total.tokens_per_s:.4g} tokens/s, first token after {show_time(total.ttft_s)}, then "
        f"{show_time(total.token_s)} per token; requests at once: {total.num_requests}"
    )
    yield (
        f"range      {least * total.tokens_per_s:.3g} to {most * total.tokens_per_s:.3g} tokens/s: the figures of "
        f"devices are {find_origin(plan.problem, plan.placement)}"
    )
    if crossing := sorted({size for stages in plan.placement.pipelines for size in _list_crossings(plan, stages)}):
        sizes = format_bytes(crossing[0]) + (f" to {format_bytes(crossing[-1])}" if len(crossing) > 1 else "")
        yield f"between    stages {sizes} for each token"


def _render_limits(plan: Plan) -> Iterator[str]:
    """Yield the limit of each pipeline, or of many pipelines the number with each limit."""
    pipelines = plan.estimate.pipelines
    if len(pipelines) > MOST_IDLE:
        for limit, number in Counter(each.limit for each in pipelines).most_common():
            yield f"limit      {number} of {len(pipelines)} pipelines: {LIMITS[limit]}"
        return
    for rank, each in enumerate(pipelines, 1):
        where = f" of {make_printable(each.limit_at, MOST_NAME)}" if each.limit_at else ""
        load = f"requests: {each.num_requests}, {each.tokens_per_s:.4g} tokens/s"
        yield f"limit      pipeline {rank}: {LIMITS[each.limit]}{where}; {load}"


def _list_crossings(plan: Plan, stages: Sequence[PlacedStage]) -> Iterator[int]:
    """Yield the bytes of a token that go to each stage but the first."""
    yield from (plan.problem.model.cross(stage.layers.start) for stage in stages[1:])


def _count_weights(plan: Plan, stage: PlacedStage) -> int:
    return weigh_layers(plan.problem.model, stage.layers)


def show_time(seconds: float) -> str:
    """Return a time in s or ms, with three digits."""
    return f"{seconds:.3g} s" if seconds >= 1 else f"{seconds * 1e3:.3g} ms"

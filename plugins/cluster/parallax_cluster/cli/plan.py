"""The command ``parallax cluster plan``."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from parallax_client.client import Client
from parallax_client.server_url import UrlOption, find_url
from parallax_cluster.cli.live_cluster import read_live_cluster
from parallax_cluster.cli.plan_catalogue import print_catalogue, print_example
from parallax_cluster.cli.plan_inputs import guess_model, measure_model, read_nodes, refuse_model
from parallax_cluster.cli.plan_view import Plan, describe_plan, rank_plans, render_plans
from parallax_cluster.cli.size_options import (
    ActiveOption,
    BackendOption,
    DeviceOption,
    LayersOption,
    ParamsOption,
    WeightBitsOption,
)
from parallax_cluster.cli.status import TIMEOUT_S
from parallax_cluster.node.coordinator.placement_guard import make_placement
from parallax_cluster.placement.estimate import PlacementEstimator
from parallax_cluster.placement.idle import explain_idle
from parallax_cluster.placement.nodes_file import read_cluster
from parallax_cluster.placement.what_if import change_cluster
from parallax_core.api import (
    ClusterProfile,
    Objective,
    ParallaxError,
    PlacementPolicy,
    PlacementProblem,
    ServingGoal,
    UsageError,
    silent,
)
from parallax_core.api.cli import PluginHost, make_display, new_app

app = new_app()
MANY_NODES = 500
"""From this number on, a plan takes seconds."""


@app.command()
def plan(
    model: Annotated[str, typer.Argument(help="A folder, a hub id such as org/name, pypi:NAME, or an alias.")],
    nodes: Annotated[
        Path | None,
        typer.Option(
            help="The nodes and links, in TOML or JSON; by default those of a running server.", metavar="FILE"
        ),
    ] = None,
    url: UrlOption = None,
    what_if: Annotated[
        list[str] | None,
        typer.Option(
            help="Also plan with this change, and those before it: +1xRTX4090@20ms, -NAME, NAME=64gb, ONE~OTHER@10gbe.",
            metavar="CHANGE",
        ),
    ] = None,
    compare: Annotated[
        list[str] | None,
        typer.Option(help="Rank changes, each alone; a comma joins those of one purchase.", metavar="CHANGES"),
    ] = None,
    objective: Annotated[str, typer.Option(help="The goal: throughput or latency.", metavar="GOAL")] = "throughput",
    concurrency: Annotated[int, typer.Option(help="Requests at the same time.", min=1, max=1_000_000, metavar="N")] = 8,
    prompt: Annotated[int, typer.Option(help="Tokens of a prompt.", min=1, max=10_000_000, metavar="N")] = 512,
    output: Annotated[int, typer.Option(help="Tokens of an answer.", min=1, max=10_000_000, metavar="N")] = 256,
    context: Annotated[
        int, typer.Option(help="Tokens of KV cache per request; 0: prompt and output.", min=0, metavar="N")
    ] = 0,
    max_ttft: Annotated[
        float | None, typer.Option(help="The most seconds to the first token.", min=1e-6, metavar="S")
    ] = None,
    max_token_time: Annotated[
        float | None, typer.Option(help="The most seconds per token after the first.", min=1e-6, metavar="S")
    ] = None,
    min_throughput: Annotated[
        float, typer.Option(help="The least tokens per second, for --objective latency.", min=0, metavar="N")
    ] = 0.0,
    weight_bits: WeightBitsOption = None,
    params: ParamsOption = None,
    layers: LayersOption = None,
    active: ActiveOption = None,
    backend: BackendOption = None,
    device: DeviceOption = "",
    placement: Annotated[str, typer.Option(help="The placement policy.", metavar="POLICY")] = "search",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    _devices: Annotated[
        bool,
        typer.Option(
            "--devices", help="List devices and links with known figures.", callback=print_catalogue, is_eager=True
        ),
    ] = False,
    _example: Annotated[
        bool, typer.Option("--example", help="Print a nodes file to begin with.", callback=print_example, is_eager=True)
    ] = False,
) -> None:
    """Plan the layers of each node and predict the speed, without starting anything.

    The nodes are those of a file, or those that have joined a running server, as they have measured themselves.
    Of the model only its config is needed, and its index if there is one: neither weights nor nodes.
    """
    goal = ServingGoal(
        prompt_tokens=prompt,
        output_tokens=output,
        context_tokens=context,
        concurrency=concurrency,
        objective=_read_objective(objective),
        max_ttft_s=max_ttft or float("inf"),
        max_token_s=max_token_time or float("inf"),
        min_tokens_per_s=min_throughput,
    )
    cluster, host = _find_cluster(nodes, url), PluginHost.prepare()
    loading, guessed = (backend, device) if backend else None, guess_model(params, layers, active)
    policy, measured = make_placement(host, placement), measure_model(host, model, weight_bits, guessed, loading)
    problem = PlacementProblem(cluster=cluster, model=measured.demand, goal=goal)
    wanted = [("", problem)]
    for change in what_if or ():
        cluster = change_cluster(cluster, change)
        wanted.append((change, replace(problem, cluster=cluster)))
    alone = [(change, replace(problem, cluster=change_cluster(problem.cluster, change))) for change in compare or ()]
    made = list(_make_plans(policy, [*wanted, *alone]))
    plans, compared = made[: len(wanted)], made[len(wanted) :]
    if as_json:
        shown = {"plans": plans, **({"compared": compared} if compare else {})}
        found = {name: [describe_plan(each) for each in those] for name, those in shown.items()}
        print(json.dumps({"model": model, **found}, indent=2))
    else:
        print("\n".join(render_plans(model, plans, measured.basis, styled=sys.stdout.isatty())))
        print("\n".join(rank_plans(plans[0], compared)), end="\n" * bool(compared))
    if not any(each.placement.pipelines for each in (*plans, *compared)):
        raise refuse_model(plans[0].problem, measured)


def _find_cluster(nodes: Path | None, url: str | None) -> ClusterProfile:
    """Return the cluster of a nodes file, or of a running server if no file is given."""
    if nodes is not None:
        if url is not None:
            raise UsageError("--nodes and --url are both given", "plan for the nodes of a file, or of a server")
        return read_cluster(read_nodes(nodes))
    found = find_url(url)
    try:
        return read_live_cluster(Client(found, TIMEOUT_S).cluster(), found)
    except ParallaxError as error:
        if url is None and isinstance(error.__cause__, OSError):
            raise UsageError(f"--nodes is not given, and {error}", "give --nodes FILE, or --url of a server") from error
        raise


def _read_objective(text: str) -> Objective:
    match text:
        case "throughput" | "latency":
            return text
        case _:
            raise UsageError(f"--objective is {text!r}", "choose throughput or latency")


def _make_plans(policy: PlacementPolicy, wanted: Sequence[tuple[str, PlacementProblem]]) -> Iterator[Plan]:
    """Yield a plan for each change, and say how far it is where that takes seconds."""
    num_nodes = len(wanted[0][1].cluster.nodes)
    with make_display() if num_nodes >= MANY_NODES else nullcontext(silent) as progress:
        for number, (change, problem) in enumerate(wanted):
            progress(f"plans for {num_nodes} nodes", number, len(wanted), "items")
            yield _make_plan(policy, problem, change)


def _make_plan(policy: PlacementPolicy, problem: PlacementProblem, change: str) -> Plan:
    estimator = PlacementEstimator(problem)
    placement = policy.place(problem, estimator)
    estimate, idle = estimator.estimate(placement), explain_idle(problem, placement)
    return Plan(change=change, problem=problem, placement=placement, estimate=estimate, idle=idle)

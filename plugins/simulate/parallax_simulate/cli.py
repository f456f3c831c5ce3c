"""Predict how long requests wait and take on given nodes, without starting any."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from math import inf
from pathlib import Path
from typing import Annotated, Any

import typer

from parallax_cluster.cli.plan_inputs import guess_model, measure_model, read_nodes, refuse_model
from parallax_cluster.cli.size_options import (
    ActiveOption,
    BackendOption,
    DeviceOption,
    LayersOption,
    ParamsOption,
    WeightBitsOption,
)
from parallax_cluster.node.coordinator.placement_guard import make_placement
from parallax_cluster.placement.estimate import PlacementEstimator
from parallax_cluster.placement.nodes_file import read_cluster
from parallax_cluster.planned_routing import PlannedRouting
from parallax_core.api import ClusterProfile, PlacementProblem, ServingGoal
from parallax_core.api.cli import PluginHost, UsageError, make_display, new_app
from parallax_core.api.simulation import BatchingGuard, HeadOptions, RoutingGuard, make_policy
from parallax_simulate.cluster import ChurnOptions
from parallax_simulate.processes import choose_processes, open_groups
from parallax_simulate.report import LatencyLimits
from parallax_simulate.run import SimulationOptions, make_source, run_groups
from parallax_simulate.trace import Arrival, TraceOptions, make_trace, parse_length, read_trace
from parallax_simulate.view import render_report

app = new_app()

LEAST_TIMES, MOST_TIMES = 0.01, 1e4
"""The bounds of ``--slow``."""


@app.command()
def simulate(
    model: Annotated[str, typer.Argument(help="A folder, a hub id such as org/name, pypi:NAME, or an alias.")],
    nodes: Annotated[Path, typer.Option(help="The nodes and links, in TOML or JSON, as for plan.", metavar="FILE")],
    rate: Annotated[
        float | None, typer.Option(help="Requests that arrive per second (1).", min=1e-6, max=1e6, metavar="N")
    ] = None,
    users: Annotated[
        int | None,
        typer.Option(help="Users who each send the next request after an answer.", min=1, max=100_000, metavar="N"),
    ] = None,
    requests: Annotated[int, typer.Option(help="Requests in all.", min=1, max=10_000_000, metavar="N")] = 1000,
    prompt: Annotated[
        str, typer.Option(help="Tokens of a prompt: 512, a range such as 64-1024, or exp:MEAN.", metavar="LENGTH")
    ] = "512",
    output: Annotated[str, typer.Option(help="Tokens of an answer, likewise.", metavar="LENGTH")] = "256",
    burst: Annotated[int, typer.Option(help="Requests that arrive at the same moment.", min=1, metavar="N")] = 1,
    shared_prefix: Annotated[
        int, typer.Option(help="Tokens at the beginning that prompts of a group share.", min=0, metavar="N")
    ] = 0,
    groups: Annotated[int, typer.Option(help="Groups of such prompts.", min=1, metavar="N")] = 1,
    trace: Annotated[
        Path | None, typer.Option(help="Take the requests from a file: JSON lines, or Azure's CSV.", metavar="FILE")
    ] = None,
    concurrency: Annotated[
        int | None, typer.Option(help="Requests at once to place for: the users, or 32.", min=1, metavar="N")
    ] = None,
    placement: Annotated[str, typer.Option(help="The placement policy.", metavar="POLICY")] = "search",
    routing: Annotated[str, typer.Option(help="The routing policy.", metavar="POLICY")] = "least-pending-tokens",
    batching: Annotated[str, typer.Option(help="The batching policy.", metavar="POLICY")] = "work-conserving",
    slow: Annotated[
        list[str] | None,
        typer.Option(help="Make a node slower than its profile says, unannounced: NAME=2.", metavar="NODE=TIMES"),
    ] = None,
    churn: Annotated[
        float | None, typer.Option(help="Mean seconds between losses of a node, anywhere.", min=1e-3, metavar="S")
    ] = None,
    down: Annotated[float, typer.Option(help="Seconds until its pipeline serves again.", min=0, metavar="S")] = 30.0,
    max_ttft: Annotated[
        float | None, typer.Option(help="Goodput: the most seconds to the first token.", min=1e-6, metavar="S")
    ] = None,
    max_token_time: Annotated[
        float | None, typer.Option(help="Goodput: the most seconds per token after it.", min=1e-6, metavar="S")
    ] = None,
    weight_bits: WeightBitsOption = None,
    params: ParamsOption = None,
    layers: LayersOption = None,
    active: ActiveOption = None,
    backend: BackendOption = None,
    device: DeviceOption = "",
    coarse: Annotated[
        bool, typer.Option("--coarse", help="Simulate faster: group decodes, and leave out prefix caches.")
    ] = False,
    processes: Annotated[
        int | None,
        typer.Option(
            help="Processes to simulate in; by default one per processor if it takes long.", min=1, max=256, metavar="N"
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="The seed of arrivals, lengths and losses.", min=0, metavar="N")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Predict how long requests wait and take on given nodes, without starting any.

    The placement, routing, scheduling and paging code that serves runs against a virtual clock; only the time of a step
    and of a message is predicted, as plan predicts it. Of the model only its config is needed.
    """
    if coarse and batching != "work-conserving":
        raise UsageError("a coarse simulation has no batching policies", "leave out --batching or --coarse")
    if users and (rate or burst > 1 or coarse or (processes or 1) > 1):
        hint = "leave out --rate, --burst, --coarse and --processes"
        raise UsageError("--users sends a request after each answer, simulated exactly in one process", hint)
    given = TraceOptions(
        rate=rate or 1.0,
        prompt=parse_length(prompt, "--prompt"),
        output=parse_length(output, "--output"),
        burst=burst,
        shared_tokens=shared_prefix,
        groups=groups,
        seed=seed,
    )
    arrivals = _read_trace(trace) if trace else list(make_trace(given, requests))
    cluster, host = read_cluster(read_nodes(nodes)), PluginHost.prepare()
    loading, guessed = (backend, device) if backend else None, guess_model(params, layers, active)
    measured = measure_model(host, model, weight_bits, guessed, loading)
    problem = PlacementProblem(
        cluster=cluster,
        model=measured.demand,
        goal=_make_goal(arrivals, concurrency or users or 32),
    )
    estimator = PlacementEstimator(problem)
    placed = make_placement(host, placement).place(problem, estimator)
    if not placed.pipelines:
        raise refuse_model(problem, measured)
    estimate = estimator.estimate(placed)
    chosen = PlannedRouting(make_policy(host, "routing", routing), lambda rank: estimate.pipelines[rank].num_requests)
    options = SimulationOptions(
        routing=RoutingGuard(chosen),
        head=HeadOptions(batching=BatchingGuard(make_policy(host, "batching", batching))),
        churn=ChurnOptions(every_s=churn or inf, down_s=down, seed=seed),
        slow=_read_slow(slow or (), cluster),
        limits=LatencyLimits(max_ttft_s=max_ttft or inf, max_token_s=max_token_time or inf),
        is_coarse=coarse,
        num_users=users or 0,
        context_length=max(arrival.prompt_tokens + arrival.output_tokens for arrival in arrivals),
    )
    num_processes = processes or (1 if users else choose_processes(len(arrivals)))
    with make_display() as progress, open_groups(make_source(estimator, placed, options), num_processes) as opened:
        report = run_groups(opened, arrivals, options, progress)
    if as_json:
        print(json.dumps({"model": model, "pipelines": len(placed.pipelines), **_drop_infinite(report.describe())}))
    else:
        print("\n".join(render_report(model, estimate, report)))


def _make_goal(arrivals: Sequence[Arrival], concurrency: int) -> ServingGoal:
    """Return the load to place for: requests of the mean length."""
    return ServingGoal(
        prompt_tokens=max(1, round(sum(arrival.prompt_tokens for arrival in arrivals) / len(arrivals))),
        output_tokens=max(1, round(sum(arrival.output_tokens for arrival in arrivals) / len(arrivals))),
        concurrency=concurrency,
    )


def _read_trace(path: Path) -> list[Arrival]:
    try:
        return read_trace(path.read_text(encoding="utf-8-sig").split("\n"), path.name)
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read: {error}", "name a file of requests") from error


def _read_slow(given: Sequence[str], cluster: ClusterProfile) -> Mapping[str, float]:
    """Return how many times slower some nodes are, by name."""
    names, found = {node.name for node in cluster.nodes}, {}
    for text in given:
        name, _, times = text.rpartition("=")
        if name not in names:
            raise UsageError(f"--slow {text}: there is no node {name!r}", f"there are {', '.join(sorted(names)[:20])}")
        try:
            found[name] = float(times)
        except ValueError:
            found[name] = 0.0
        if not LEAST_TIMES <= found[name] <= MOST_TIMES:
            raise UsageError(f"--slow {text}: {times!r} is no number of times", "write NAME=2 for half its speed")
    return found


def _drop_infinite(values: Any) -> Any:  # noqa: ANN401 -- any JSON
    """Return JSON values without those that JSON does not have."""
    if isinstance(values, Mapping):
        return {name: _drop_infinite(value) for name, value in values.items()}
    if isinstance(values, list):
        return [_drop_infinite(value) for value in values]
    return None if values in {inf, -inf} else values

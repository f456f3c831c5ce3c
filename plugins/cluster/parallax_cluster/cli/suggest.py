"""The command ``parallax models suggest``."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from parallax_cluster.cli.model_list import ListedModel, ModelForm, read_list, read_shape
from parallax_cluster.cli.plan_inputs import read_nodes
from parallax_cluster.cli.plan_view import show_time
from parallax_cluster.node.coordinator.placement_guard import make_placement
from parallax_cluster.node.profile.device import measure_machine
from parallax_cluster.placement.demand import measure_demand, weigh_layers
from parallax_cluster.placement.estimate import PlacementEstimator
from parallax_cluster.placement.nodes_file import describe_node, read_cluster
from parallax_core.api import (
    ClusterProfile,
    DevicePlan,
    Estimate,
    LayerRange,
    ModelShape,
    NodeProfile,
    ParallaxError,
    Placement,
    PlacementPolicy,
    PlacementProblem,
    ServingGoal,
    format_bytes,
)
from parallax_core.api.cli import PluginHost, make_display, new_app, print_table
from parallax_core.api.deployment import Catalog, count_active, count_weights, find_backends
from parallax_core.api.node import divert_output

app = new_app()
BILLION = 1e9
NEARLY = 0.9
"""The share of the speed of the fastest format at which one of more bits is better."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Suggestion:
    """A model in a format that fits, and how fast it is."""

    model: ListedModel
    form: ModelForm
    shape: ModelShape
    size: int
    """Bytes of its weights."""
    placement: Placement
    estimate: Estimate

    @property
    def speed(self) -> float:
        """Tokens per second of one request after its first token."""
        return 1 / self.estimate.token_s


@app.command()
def suggest(
    nodes: Annotated[
        Path | None,
        typer.Option(help="The nodes and links, as for `cluster plan`; by default this machine.", metavar="FILE"),
    ] = None,
    models: Annotated[
        list[Path] | None, typer.Option(help="A file with further models; may be repeated.", metavar="FILE")
    ] = None,
    prompt: Annotated[int, typer.Option(help="Tokens of a prompt.", min=1, max=10_000_000, metavar="N")] = 512,
    output: Annotated[int, typer.Option(help="Tokens of an answer.", min=1, max=10_000_000, metavar="N")] = 256,
    context: Annotated[int, typer.Option(help="Tokens of KV cache to have room for.", min=1, metavar="N")] = 4096,
    concurrency: Annotated[int, typer.Option(help="Requests at the same time.", min=1, max=1_000_000, metavar="N")] = 1,
    min_speed: Annotated[
        float, typer.Option(help="Tokens per second that a format of more bits needs.", min=0, metavar="N")
    ] = 8.0,
    every: Annotated[bool, typer.Option("--all", help="Show every format that fits, not the best one.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Suggest models that fit this machine, or several nodes.

    Of each model it shows the format of the most bits that is fast enough, or the fastest one. Nothing is downloaded.
    The first time, this machine is measured for some seconds.
    """
    host, listed = PluginHost.prepare(), read_list(models or ())
    cluster = read_cluster(read_nodes(nodes)) if nodes is not None else _profile_here(host)
    goal = ServingGoal(
        prompt_tokens=prompt,
        output_tokens=output,
        context_tokens=max(context, prompt + output),
        concurrency=concurrency,
        objective="latency",
    )
    fitting = _plan_all(host, cluster, goal, [model for model in listed.models if model.forms])
    chosen = [each if every else _choose(each, min_speed) for each in fitting.values()]
    found = sorted((each for some in chosen for each in some), key=_rank)
    large, catalog = [name for name, some in fitting.items() if not some], Catalog(host)
    if as_json:
        shown = [_describe(catalog, each) for each in found]
        print(json.dumps({"date": listed.date, "suggestions": shown, "too_large": large}, indent=2))
    else:
        _print(catalog, found, large, listed.date)
    if not found:
        raise ParallaxError(
            "none of the models fits", "add nodes, or give a smaller --context; --models FILE adds models"
        )


def _plan_all(
    host: PluginHost, cluster: ClusterProfile, goal: ServingGoal, models: Sequence[ListedModel]
) -> dict[str, list[Suggestion]]:
    """Return the formats of each model that fit, by the name of the model, and say how far it is."""
    policy, found = make_placement(host, "search"), dict[str, list[Suggestion]]()
    with make_display() as display:
        for number, model in enumerate(models, 1):
            found[model.name] = list(_fit(host, policy, cluster, goal, model))
            display("models", number, len(models), "items")
    return found


def _rank(each: Suggestion) -> tuple[int, str, float]:
    """Return the place of a suggestion: large models first, and formats of many bits."""
    return -count_weights(each.shape), each.model.name, -each.form.bits


def _profile_here(host: PluginHost) -> ClusterProfile:
    """Return this machine as the only node."""
    with divert_output():
        found = measure_machine(host, find_backends(host, None)[0], DevicePlan())
    node = NodeProfile(name=socket.gethostname(), device=found.device, disk_bandwidth=found.disk_bandwidth)
    return read_cluster({"nodes": [describe_node(node)]})


def _fit(
    host: PluginHost, policy: PlacementPolicy, cluster: ClusterProfile, goal: ServingGoal, model: ListedModel
) -> Iterator[Suggestion]:
    """Yield the formats of a model that fit, those of more bits first."""
    shape, memory = read_shape(host, model), sum(node.device.memory for node in cluster.nodes)
    for form in sorted(model.forms, key=lambda form: -form.bits):
        demand = measure_demand(shape, form.bits / 8)
        size = weigh_layers(demand, LayerRange(0, len(demand.layers)))
        if size > memory:  # which a search would find out more slowly
            continue
        problem = PlacementProblem(cluster=cluster, model=demand, goal=goal)
        estimator = PlacementEstimator(problem)
        placement = policy.place(problem, estimator)
        if placement.pipelines and (estimate := estimator.estimate(placement)).num_requests:
            yield Suggestion(model=model, form=form, shape=shape, size=size, placement=placement, estimate=estimate)


def _choose(fitting: Sequence[Suggestion], min_speed: float) -> list[Suggestion]:
    """Return the first that is fast enough, or about as fast as the fastest; none if none fits."""
    enough = min(min_speed, NEARLY * max((each.speed for each in fitting), default=0.0))
    return [each for each in fitting if each.speed >= enough][:1]


def _is_here(catalog: Catalog, model: str) -> bool:
    """Return whether a model is on this machine; a name that no source takes is not."""
    with suppress(ParallaxError):
        return catalog.find(model) is not None
    return False


def _list_nodes(each: Suggestion) -> list[str]:
    """Return the nodes that a model would run on."""
    return sorted({stage.node for stages in each.placement.pipelines for stage in stages})


def _describe(catalog: Catalog, each: Suggestion) -> dict[str, Any]:
    return {
        "name": each.model.name,
        "model": each.form.model,
        "format": each.form.format,
        "bits_per_weight": each.form.bits,
        "parameters": count_weights(each.shape),
        "active_parameters": count_active(each.shape),
        "weights_bytes": each.size,
        "tokens_per_s": each.speed,
        "ttft_s": each.estimate.ttft_s,
        "nodes": _list_nodes(each),
        "is_here": _is_here(catalog, each.form.model),
    }


def _print(catalog: Catalog, found: Sequence[Suggestion], large: Sequence[str], date: str) -> None:
    rows = [
        (
            each.model.name,
            _shorten(each.shape),
            each.form.format,
            format_bytes(each.size),
            f"{each.speed:.3g}",
            show_time(each.estimate.ttft_s),
            str(len(_list_nodes(each))),
            each.form.model + (" (on this machine)" if _is_here(catalog, each.form.model) else ""),
        )
        for each in found
    ]
    head = ("MODEL", "PARAMETERS", "FORMAT", "WEIGHTS", "TOKENS/S", "FIRST TOKEN", "NODES", "TO SERVE")
    print_table(head, rows, empty="nothing fits")
    if large:
        print(f"\ntoo large: {', '.join(large)}")
    print(f"\nspeeds are predictions, of weights as stored; the list of models is of {date}")


def _shorten(shape: ModelShape) -> str:
    """Return the parameters of a model, and how many a token meets."""
    total, active = count_weights(shape) / BILLION, count_active(shape) / BILLION
    has_experts = any(layer.num_experts for layer in shape.layers)
    return f"{total:.3g} B" + (f", {active:.2g} B active" if has_experts else "")

"""Reads what `parallax cluster plan` and `parallax simulate` are given: the nodes file and the model."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

from parallax_cluster.deploy.weight_size import measure_weight, read_model
from parallax_cluster.layer_plan import describe_unreachable, lacks_links
from parallax_cluster.placement.demand import measure_demand
from parallax_cluster.placement.guessed_shape import guess_shape, read_count
from parallax_cluster.placement.policy import SearchPlacement
from parallax_cluster.placement.shortage import describe_shortage
from parallax_core.api import ModelDemand, ModelShape, ParallaxError, PlacementProblem, StagePlan, UsageError
from parallax_core.api.cli import PluginHost, make_display
from parallax_core.api.deployment import measure_loaded
from parallax_core.api.node import divert_output


def read_nodes(path: Path) -> Any:  # noqa: ANN401 -- of any type; `read_cluster` checks it
    """Return the contents of a nodes file; raises UsageError if it is neither TOML nor JSON."""
    try:
        text = path.read_text(encoding="utf-8-sig")
        return json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read: {error}", "name a file of nodes, in TOML or JSON") from error
    except ValueError as error:
        kind = "JSON" if path.suffix == ".json" else "TOML"
        raise UsageError(f"{path} is not valid {kind}: {error}", "a name that ends in .json is read as JSON") from error


def guess_model(params: str | None, num_layers: int | None, active: str | None) -> ModelShape | None:
    """Return the shape of a model of which only sizes are given; None: none is."""
    if params is None and num_layers is None and active is None:
        return None
    if params is None or num_layers is None:
        missing = "--params" if params is None else "--layers"
        raise UsageError(f"{missing} is missing", "write --params 24B --layers 40, and --active 3B if it has experts")
    return guess_shape(
        read_count(params, "--params"), num_layers, None if active is None else read_count(active, "--active")
    )


def measure_model(
    host: PluginHost,
    model: str,
    weight_bits: float | None,
    guessed: ModelShape | None = None,
    loading: tuple[str, str] | None = None,
) -> ModelDemand:
    """Return what a model takes, at ``weight_bits`` bits per weight; None: as it is loaded, else as stored.

    Args:
        host: offers adapters, sources and backends.
        model: the name as the user writes it.
        weight_bits: bits per weight.
        guessed: the shape of a model of which only sizes are known; it has 16 bits per weight unless they are given.
        loading: the names of the backend that loads the weights, and of its device; None: they are taken as stored.

    Raises:
        ParallaxError: if there is no such backend, or it does not tell what it loads.
    """
    if guessed is not None:
        return measure_demand(guessed, (weight_bits or 16.0) / 8)
    with make_display() as display, divert_output():
        known = read_model(host, model, display)
        if weight_bits or loading is None:
            return measure_demand(known.shape, weight_bits / 8 if weight_bits else measure_weight(known))
        backend, device = loading
        size = measure_loaded(host, host.backends().get(backend), StagePlan(model=known.folder, device=device))
    if size is None:
        raise ParallaxError(f"backend {backend!r} does not tell what it loads", "give --weight-bits")
    return measure_demand(known.shape, size=size)


def refuse_model(problem: PlacementProblem) -> ParallaxError:
    """Return the error for a model that does not fit on the nodes, or on those that reach each other."""
    if lacks_links(problem, SearchPlacement()):
        hint = "have them reach each other, directly or over a relay, or add a node"
        return ParallaxError(f"the model cannot be placed: {describe_unreachable(problem.cluster)}", hint)
    message = f"the model does not fit: {describe_shortage(problem)}"
    return ParallaxError(message, "add nodes, or load fewer bits per weight (--weight-bits, --backend)")

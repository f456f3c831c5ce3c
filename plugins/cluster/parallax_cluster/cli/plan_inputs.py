"""Reads what `parallax cluster plan` and `parallax simulate` are given: the nodes file and the model."""

from __future__ import annotations

import json
import sys
import tomllib
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from parallax_cluster.deploy.weight_size import fetch_headers, measure_stored, read_model
from parallax_cluster.layer_plan import describe_unreachable, lacks_links
from parallax_cluster.placement.cost_model import CostModel
from parallax_cluster.placement.demand import add_adapters, measure_demand, weigh_layers
from parallax_cluster.placement.guessed_shape import guess_shape, read_count
from parallax_cluster.placement.policy import SearchPlacement
from parallax_cluster.placement.shortage import describe_shortage, find_rest
from parallax_core.api import (
    LayerRange,
    ModelDemand,
    ModelShape,
    ParallaxError,
    PlacementProblem,
    StagePlan,
    UsageError,
    format_bytes,
)
from parallax_core.api.cli import PluginHost, make_display
from parallax_core.api.deployment import Catalog, measure_loaded
from parallax_core.api.node import divert_output

ESTIMATED = "estimated"
"""The name of the family of models that no adapter knows."""
BITS = (8.0, 6.5, 4.5, 3.0)
"""Bits per weight, with the share of scales, of forms that people load: 8 bits, Q6_K, Q4_K or 4 bits, Q2_K."""


class MeasuredModel(NamedTuple):
    """A model, and what it takes."""

    demand: ModelDemand
    shape: ModelShape
    basis: str
    """How its weights were counted, in words."""
    adapters: tuple[int, ...] = ()
    """The bytes kept for adapters beside each layer; see `LoadedSize`."""


def read_nodes(path: Path, what: str = "nodes") -> Any:  # noqa: ANN401 -- of any type; its reader checks it
    """Return the contents of a file of nodes, or of what else is named; raises UsageError if it is no TOML or JSON."""
    try:
        text = path.read_text(encoding="utf-8-sig")
        return json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read: {error}", f"name a file of {what}, in TOML or JSON") from error
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
) -> MeasuredModel:
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
        return _take_bits(guessed, weight_bits or 16.0)
    with make_display() as display, divert_output():
        known = read_model(host, model, display)
        if known.family.name == ESTIMATED:
            print(f"note: {model} has no adapter; its layers are estimated", file=sys.stderr)
        if weight_bits:
            return _take_bits(known.shape, weight_bits)
        with suppress(ParallaxError):  # without headers, config.json tells, less exactly
            fetch_headers(Catalog(host), model, known.folder, display)
        if loading is None:
            basis = "as stored; --backend NAME counts what a backend loads"
            return MeasuredModel(measure_demand(known.shape, size=measure_stored(known)), known.shape, basis)
        backend, device = loading
        size = measure_loaded(host, host.backends().get(backend), StagePlan(model=known.folder, device=device))
    if size is None:
        raise ParallaxError(f"backend {backend!r} does not tell what it loads", "give --weight-bits")
    basis = f"as {backend} loads them" + (f" on {device}" if device else "")
    if size.adapters:
        basis += f", with {format_bytes(sum(size.adapters))} kept for adapters"
    return MeasuredModel(measure_demand(known.shape, size=size), known.shape, basis, size.adapters)


def _take_bits(shape: ModelShape, bits: float) -> MeasuredModel:
    return MeasuredModel(measure_demand(shape, bits / 8), shape, f"at {bits:g} bits each")


def refuse_model(problem: PlacementProblem, model: MeasuredModel) -> ParallaxError:
    """Return the error for a model that does not fit on the nodes, or on those that reach each other.

    The hint names the most bits per weight with which it would.
    """
    if lacks_links(problem, SearchPlacement()):
        hint = "have them reach each other, directly or over a relay, or add a node"
        return ParallaxError(f"the model cannot be placed: {describe_unreachable(problem.cluster)}", hint)
    message = f"the model does not fit: {describe_shortage(problem)}"
    for bits in BITS:
        demand = add_adapters(measure_demand(model.shape, bits / 8), model.adapters)
        if problem.cluster.nodes and not len(find_rest(CostModel(replace(problem, model=demand)))):
            needed = format_bytes(weigh_layers(demand, LayerRange(0, len(demand.layers))))
            return ParallaxError(message, f"with {bits:g} bits per weight it would fit, in {needed}; or add nodes")
    return ParallaxError(message, f"add nodes: it would not fit with {BITS[-1]:g} bits per weight either")

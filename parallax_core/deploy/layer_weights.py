"""Computes the cost of a model's layers and divides them among the stages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from parallax_core.base.errors import UsageError
from parallax_core.checkpoint.config_reader import count_layers
from parallax_core.cluster.placement.parallel import ParallelConfig
from parallax_core.contracts.border import check_cuts, find_illegal, list_borders
from parallax_core.contracts.model import ModelShape
from parallax_core.models.adapters import find_family
from parallax_core.plugins.host import PluginHost


def place_layers(parallel: ParallelConfig, plugins: PluginHost, config: Mapping[str, Any]) -> ParallelConfig:
    """Return ``parallel`` with the layers of each stage, for the model of ``config``, its config.json.

    Every stage gets about the same cost, see `weigh_layers`; all layers cost the same if no adapter knows the model.

    Raises:
        UsageError: if there are fewer layers than stages, or the given layers are not the model's.
        Unsupported: if the model cannot be cut where the given layers say.
    """
    if parallel.num_stages == 1 and not parallel.layers:
        return parallel
    family = find_family(plugins, config)
    if family is None:
        if (count := count_layers(config)) is None:
            raise UsageError("config.json does not say how many layers the model has", "give the stages their --layers")
        return parallel.with_layers(count)
    shape = family.adapter.read_shape(config)
    illegal = find_illegal(list_borders(shape))
    placed = parallel.with_layers(len(shape.layers), weigh_layers(shape), illegal)
    for layers in placed.layers:
        check_cuts(shape, layers)
    return placed


def weigh_layers(shape: ModelShape) -> tuple[int, ...]:
    """Return the number of parameters used for a token in each layer; the last layer's includes the output head."""
    weights = [layer.active_weights for layer in shape.layers]
    weights[-1] += shape.before_weights if shape.is_tied else shape.after_weights
    return tuple(weights)

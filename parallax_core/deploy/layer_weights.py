"""Computes the cost of a model's layers and divides them among the stages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from parallax_core.base.errors import UsageError
from parallax_core.checkpoint.config_reader import count_layers
from parallax_core.cluster.placement.layer_cost import LayerCosts, count_bits, size_layers, weigh_layers
from parallax_core.cluster.placement.parallel import ParallelConfig
from parallax_core.contracts.border import check_cuts, find_illegal, list_borders
from parallax_core.contracts.device import DType
from parallax_core.models.adapters import find_family
from parallax_core.plugins.host import PluginHost


def place_layers(parallel: ParallelConfig, plugins: PluginHost, config: Mapping[str, Any]) -> ParallelConfig:
    """Return ``parallel`` with the layers of each stage, for the model of ``config``, its config.json.

    Every stage gets about the same cost, see `layer_cost.weigh_layers`; all layers cost the same if no adapter knows
    the model.

    Raises:
        UsageError: if there are fewer layers than stages, or the given layers are not the model's.
        Unsupported: if the model cannot be cut where the given layers say.
    """
    if parallel.num_stages == 1 and not parallel.layers:
        return parallel
    family = find_family(plugins, config)
    if family is None:
        return parallel.with_layers(_count_layers(config))
    shape = family.adapter.read_shape(config)
    illegal = find_illegal(list_borders(shape))
    placed = parallel.with_layers(len(shape.layers), weigh_layers(shape), illegal)
    for layers in placed.layers:
        check_cuts(shape, layers)
    return placed


def cost_layers(plugins: PluginHost, config: Mapping[str, Any], dtype: DType) -> LayerCosts:
    """Return the cost of each layer; all sizes are 0 if no adapter knows the model.

    Raises:
        UsageError: if config.json does not say how many layers there are.
    """
    family = find_family(plugins, config)
    if family is None:
        count = _count_layers(config)
        return LayerCosts((1,) * count, (0,) * count)
    shape = family.adapter.read_shape(config)
    illegal = find_illegal(list_borders(shape))
    return LayerCosts(weigh_layers(shape), size_layers(shape, count_bits(config, dtype)), illegal)


def _count_layers(config: Mapping[str, Any]) -> int:
    count = count_layers(config)
    if count is None:
        raise UsageError("config.json does not say how many layers the model has", "give the stages their --layers")
    return count

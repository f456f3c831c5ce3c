"""Balances the layers of a model whose stages may differ in speed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from parallax_cluster.node.executor.rebalance import RebalancingExecutor
from parallax_cluster.placement.layer_cost import LayerCosts
from parallax_core.api import LayerRange, LoadedSize, UsageError, count_layers, list_borders
from parallax_core.api.deployment import PluginHost, find_family
from parallax_core.deploy.layer_weights import weigh_layers
from parallax_core.node.executor.remote import RemoteExecutor


def balance_layers(
    plugins: PluginHost, executor: RemoteExecutor, config: Mapping[str, Any], size: LoadedSize | None
) -> RebalancingExecutor:
    """Return an executor that moves layers of the model of ``config`` between stages; see `additions.Balance`."""
    return RebalancingExecutor(executor, cost_layers(plugins, config, size))


def cost_layers(plugins: PluginHost, config: Mapping[str, Any], size: LoadedSize | None) -> LayerCosts:
    """Return the cost of each layer of the model of ``config``, with the sizes of ``size``; None: they are unknown.

    Raises:
        UsageError: if config.json does not say how many layers there are.
    """
    family = find_family(plugins, config)
    if family is None:
        count = count_layers(config)
        if count is None:
            raise UsageError("config.json does not say how many layers the model has", "give the stages their --layers")
        return LayerCosts((1,) * count, (0,) * count)
    shape = family.adapter.read_shape(config)
    sizes = [size.weigh(LayerRange(number, number + 1)) if size else 0 for number in range(len(shape.layers))]
    illegal = frozenset(border.layer for border in list_borders(shape) if border.obstacle)
    return LayerCosts(weigh_layers(shape), tuple(sizes), illegal)

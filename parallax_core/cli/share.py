"""Which layers go to which stage."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from parallax_core.base.errors import UsageError
from parallax_core.config.parallel import ParallelConfig
from parallax_core.node.family import find_family
from parallax_core.plugins.host import PluginHost

COUNTS = ("num_hidden_layers", "n_layers", "n_layer", "num_layers")
"""How config.json may call the number of layers."""


def place_layers(parallel: ParallelConfig, plugins: PluginHost, config: Mapping[str, Any]) -> ParallelConfig:
    """Return ``parallel`` with the layers of each stage, for the model that ``config``, its config.json, describes.

    Shares are even in what layers weigh; see `weigh_layers`.

    Raises:
        UsageError: if there are fewer layers than stages, or the given ones are not the model's.
    """
    if parallel.num_stages == 1 and not parallel.layers:
        return parallel
    weights = weigh_layers(plugins, config)
    return parallel.with_layers(len(weights), weights)


def weigh_layers(plugins: PluginHost, config: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the weights that a token meets in each layer, the head in the last; all 1 where no adapter knows them.

    Raises:
        UsageError: if nobody knows how many layers there are.
    """
    family = find_family(plugins, config)
    if family is not None:
        shape = family.adapter.read_shape(config)
        weights = [layer.active_weights for layer in shape.layers]
        weights[-1] += shape.before_weights if shape.is_tied else shape.after_weights
        return tuple(weights)
    text = config.get("text_config") or config
    count = next((int(text[name]) for name in COUNTS if isinstance(text.get(name), int)), None)
    if count is None:
        raise UsageError("config.json does not say how many layers the model has", "give the stages their --layers")
    return (1,) * count

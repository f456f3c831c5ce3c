"""Which layers go to which stage."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from parallax_core.base.errors import UsageError
from parallax_core.cluster.placement.parallel import ParallelConfig
from parallax_core.contracts.backend import DType
from parallax_core.models.adapters import find_family
from parallax_core.plugins.host import PluginHost

COUNTS = ("num_hidden_layers", "n_layers", "n_layer", "num_layers")
"""How config.json may call the number of layers."""
MOST_LAYERS = 10_000
"""No model has more."""


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


def size_layers(plugins: PluginHost, config: Mapping[str, Any], dtype: DType) -> tuple[int, ...]:
    """Return the bytes that each layer takes when it is loaded, at the least; all 0 where that is not known.

    The first has the embedding, and the last the head. What is quantized counts as it is stored; all else takes two
    bytes a weight, or four in float32.
    """
    family = find_family(plugins, config)
    if family is None:
        return (0,) * len(weigh_layers(plugins, config))
    shape = family.adapter.read_shape(config)
    weights = [layer.weights for layer in shape.layers]
    weights[0] += shape.before_weights
    weights[-1] += shape.after_weights + (shape.before_weights if shape.is_tied and len(weights) > 1 else 0)
    return tuple(weight * _count_bits(config, dtype) // 8 for weight in weights)


def _count_bits(config: Mapping[str, Any], dtype: DType) -> int:
    """Return the bits of a weight."""
    how = config.get("quantization") or config.get("quantization_config")
    if not how:
        return 32 if dtype == "float32" else 16
    bits = how.get("bits") if isinstance(how, Mapping) else None
    return bits if isinstance(bits, int) else 0


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
    inner = config.get("text_config")
    text = inner if isinstance(inner, Mapping) else config
    count = next((int(text[name]) for name in COUNTS if isinstance(text.get(name), int)), None)
    if count is None:
        raise UsageError("config.json does not say how many layers the model has", "give the stages their --layers")
    if count > MOST_LAYERS:
        raise UsageError(f"config.json says that the model has {count} layers", "fetch the model again")
    return (1,) * count

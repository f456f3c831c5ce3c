"""What each layer of a model costs its stage, from the model's shape."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from parallax_core.contracts.backend import DType
from parallax_core.contracts.model import ModelShape


@dataclass(frozen=True, slots=True)
class LayerCosts:
    """What each layer of a model asks of its stage."""

    weights: tuple[int, ...]
    """The time for a token, in any unit; the last layer's with the head."""
    sizes: tuple[int, ...]
    """The memory it takes, in bytes; 0: not known."""


def weigh_layers(shape: ModelShape) -> tuple[int, ...]:
    """Return the parameters a token meets in each layer, those of the head in the last."""
    weights = [layer.active_weights for layer in shape.layers]
    weights[-1] += shape.before_weights if shape.is_tied else shape.after_weights
    return tuple(weights)


def size_layers(shape: ModelShape, bits: int) -> tuple[int, ...]:
    """Return the bytes each layer takes once loaded, at ``bits`` bits a parameter.

    The first layer comes with the embedding, the last with the head: a copy of the embedding where they are tied.
    """
    weights = [layer.weights for layer in shape.layers]
    weights[0] += shape.before_weights
    weights[-1] += shape.after_weights + (shape.before_weights if shape.is_tied and len(weights) > 1 else 0)
    return tuple(weight * bits // 8 for weight in weights)


def count_bits(config: Mapping[str, Any], dtype: DType) -> int:
    """Return the bits of a parameter, at the least: as stored if quantized, else 16, or 32 in float32; 0: not known.

    Args:
        config: the model's config.json.
        dtype: what it is to be loaded as.
    """
    how = config.get("quantization") or config.get("quantization_config")
    if not how:
        return 32 if dtype == "float32" else 16
    bits = how.get("bits") if isinstance(how, Mapping) else None
    return bits if isinstance(bits, int) else 0

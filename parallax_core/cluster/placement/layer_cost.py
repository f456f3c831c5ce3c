"""Estimates the compute and memory cost of each layer from the model's shape."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from parallax_core.contracts.device import DType
from parallax_core.contracts.model import ModelShape


@dataclass(frozen=True, slots=True)
class LayerCosts:
    """The cost of each layer of a model."""

    weights: tuple[int, ...]
    """The time for a token, in any unit; the last layer's includes the output head."""
    sizes: tuple[int, ...]
    """The memory of the layer's weights, in bytes; 0: unknown."""
    illegal: frozenset[int] = frozenset()
    """The layers with which no stage may begin."""


def weigh_layers(shape: ModelShape) -> tuple[int, ...]:
    """Return the number of parameters used for a token in each layer; the last layer's includes the output head."""
    weights = [layer.active_weights for layer in shape.layers]
    weights[-1] += shape.before_weights if shape.is_tied else shape.after_weights
    return tuple(weights)


def size_layers(shape: ModelShape, bits: int) -> tuple[int, ...]:
    """Return the bytes each layer takes when loaded, at ``bits`` bits per parameter.

    The first layer includes the embedding; the last includes the output head, a copy of the embedding if tied. Tables
    stay in their files.
    """
    weights = [layer.weights - layer.table_weights for layer in shape.layers]
    weights[0] += shape.before_weights
    weights[-1] += shape.after_weights + (shape.before_weights if shape.is_tied and len(weights) > 1 else 0)
    return tuple(weight * bits // 8 for weight in weights)


def count_bits(config: Mapping[str, Any], dtype: DType) -> int:
    """Return a lower bound of the bits per parameter: as stored if quantized, else 16, or 32 in float32; 0: unknown.

    Args:
        config: the model's config.json.
        dtype: the dtype in which the model is loaded.
    """
    quantization = config.get("quantization") or config.get("quantization_config")
    if not quantization:
        return 32 if dtype == "float32" else 16
    bits = quantization.get("bits") if isinstance(quantization, Mapping) else None
    return bits if isinstance(bits, int) else 0

"""Qwen3, dense."""

from __future__ import annotations

from collections.abc import Iterator

from parallax_core.api import ConfigReader, LayerShape
from parallax_models.family import Family
from parallax_models.qwen2 import read_kinds
from parallax_models.sliding import slide_layers
from parallax_models.weights import Heads, gated_mlp


def read_layers(settings: ConfigReader) -> Iterator[LayerShape]:
    """Yield the layers; from ``max_window_layers`` on, they have a sliding window if the model uses one."""
    heads = Heads.read(settings)
    attention = count_attention(heads, settings)
    weights = attention + gated_mlp(heads.hidden, settings.count("intermediate_size")) + 2 * heads.hidden
    layer = LayerShape(kind="full", weights=weights, active_weights=weights, kv_width=2 * heads.values)
    yield from slide_layers(layer, settings, read_kinds(settings))


def count_attention(heads: Heads, settings: ConfigReader) -> int:
    """Return the parameters of attention: projections, and a norm each for queries and keys."""
    bias = settings.flag("attention_bias", default=False)
    return heads.projections(bias=bias, output_bias=bias) + 2 * heads.width


ADAPTER = Family(read_layers)

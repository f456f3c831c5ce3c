"""Gemma 3, the text model."""

from __future__ import annotations

from collections.abc import Iterator

from parallax_core.api import ConfigReader, LayerShape
from parallax_models.family import Family
from parallax_models.sliding import FULL, SLIDING, slide_layers
from parallax_models.weights import Heads, gated_mlp


def read_layers(settings: ConfigReader) -> Iterator[LayerShape]:
    """Yield the layers; every sixth has full attention, unless config.json differs."""
    heads, bias = Heads.read(settings), settings.flag("attention_bias", default=False)
    attention = heads.projections(bias=bias, output_bias=bias) + 2 * heads.width
    weights = attention + gated_mlp(heads.hidden, settings.count("intermediate_size")) + 4 * heads.hidden
    layer = LayerShape(kind="full", weights=weights, active_weights=weights, kv_width=2 * heads.values)
    period = settings.count("sliding_window_pattern", "_sliding_window_pattern", default=6)
    kinds = [SLIDING if (index + 1) % period else FULL for index in range(settings.count("num_hidden_layers"))]
    yield from slide_layers(layer, settings, kinds)


ADAPTER = Family(read_layers, is_tied=True)

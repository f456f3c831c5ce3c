"""Qwen2 and Qwen2.5: biases of queries, keys and values."""

from __future__ import annotations

from collections.abc import Iterator

from parallax_core.api import ConfigReader, LayerShape
from parallax_models.family import Family
from parallax_models.sliding import FULL, SLIDING, slide_layers
from parallax_models.weights import Heads, count_mlp


def read_layers(settings: ConfigReader) -> Iterator[LayerShape]:
    """Yield the layers."""
    heads = Heads.read(settings)
    layer = heads.layer(heads.projections(bias=True) + count_mlp(settings) + 2 * heads.hidden)
    yield from slide_layers(layer, settings, list_kinds(settings))


def list_kinds(settings: ConfigReader) -> list[str]:
    """Return the kind of each layer where config.json does not: sliding from ``max_window_layers`` on, if at all."""
    num_layers = settings.count("num_hidden_layers")
    slides = settings.flag("use_sliding_window", default=False)
    first = settings.size("max_window_layers", num_layers) if slides else num_layers
    return [FULL if index < first else SLIDING for index in range(num_layers)]


ADAPTER = Family(read_layers)

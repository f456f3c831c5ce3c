"""Qwen2 and Qwen2.5."""

from __future__ import annotations

from collections.abc import Iterator

from parallax_core.api import ConfigReader, LayerShape
from parallax_models.family import Family
from parallax_models.sliding import FULL, SLIDING, slide_layers
from parallax_models.weights import Heads, gated_mlp


def read_layers(settings: ConfigReader) -> Iterator[LayerShape]:
    """Yield the layers; from ``max_window_layers`` on, they have a sliding window if the model uses one."""
    heads = Heads.read(settings)
    attention = heads.projections(bias=True)
    weights = attention + gated_mlp(heads.hidden, settings.count("intermediate_size")) + 2 * heads.hidden
    layer = LayerShape(kind="full", weights=weights, active_weights=weights, kv_width=2 * heads.values)
    yield from slide_layers(layer, settings, read_kinds(settings))


def read_kinds(settings: ConfigReader) -> list[str]:
    """Return the kind of each layer where config.json does not give it."""
    num_layers = settings.count("num_hidden_layers")
    slides = settings.flag("use_sliding_window", default=False)
    first = settings.size("max_window_layers", num_layers) if slides else num_layers
    return [FULL if index < first else SLIDING for index in range(num_layers)]


ADAPTER = Family(read_layers)

"""Layers with sliding windows, by the settings ``layer_types`` and ``sliding_window``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from parallax_core.api import ConfigReader, LayerShape

FULL = "full_attention"
SLIDING = "sliding_attention"


def list_periodic(settings: ConfigReader, period: int, kind: str = SLIDING) -> list[str]:
    """Return a kind for each layer, but full attention for every ``period``-th."""
    return [kind if (index + 1) % period else FULL for index in range(settings.count("num_hidden_layers"))]


def slide_layers(layer: LayerShape, settings: ConfigReader, default: Sequence[str]) -> Iterator[LayerShape]:
    """Yield one layer like ``layer`` for each layer of the model, with its window.

    Args:
        layer: a layer with full attention.
        settings: the model's settings.
        default: the kind of each layer where config.json does not give it.
    """
    for kind in settings.list_words("layer_types", (FULL, SLIDING), default):
        yield layer if kind == FULL else replace(layer, kind="window", window=settings.count("sliding_window"))

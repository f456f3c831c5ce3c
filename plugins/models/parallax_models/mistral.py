"""Mistral, Ministral 3, and the text part of Mistral 3."""

from __future__ import annotations

from collections.abc import Iterator

from parallax_core.api import ConfigReader, LayerShape
from parallax_models.family import Family
from parallax_models.weights import Heads, gated_mlp

MISTRAL_WINDOW = 4096


def read_layers(settings: ConfigReader) -> Iterator[LayerShape]:
    """Yield the layers; all have a sliding window if the model has one."""
    heads, window = Heads.read(settings), read_window(settings)
    weights = heads.projections() + gated_mlp(heads.hidden, settings.count("intermediate_size")) + 2 * heads.hidden
    for _ in range(settings.count("num_hidden_layers")):
        yield heads.layer(weights, window)


def read_window(settings: ConfigReader) -> int:
    """Return the window of every layer, 0 for none; a Mistral has one unless config.json has null."""
    default = MISTRAL_WINDOW if settings.raw.get("model_type", "mistral") == "mistral" else 0
    return settings.size("sliding_window", default) if settings.raw.get("sliding_window", default) else 0


ADAPTER = Family(read_layers)

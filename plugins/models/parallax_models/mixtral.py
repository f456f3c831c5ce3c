"""Mixtral."""

from __future__ import annotations

from collections.abc import Iterator

from parallax_core.api import ConfigReader, LayerShape
from parallax_models.dense import Dense
from parallax_models.family import Family
from parallax_models.weights import Experts

LAYERS = Dense(bias=None, window=lambda settings: settings.size("sliding_window", 0))


def read_layers(settings: ConfigReader) -> Iterator[LayerShape]:
    """Yield the layers."""
    yield from [read_experts(settings).join(LAYERS.read_attention(settings))] * settings.count("num_hidden_layers")


def read_experts(settings: ConfigReader) -> Experts:
    """Return the experts of a layer."""
    return Experts.read(settings, "intermediate_size", "num_local_experts", "num_experts")


ADAPTER = Family(read_layers)

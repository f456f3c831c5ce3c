"""Qwen3.5 to 3.8, with experts or without, and the text part of those that see."""

from __future__ import annotations

from collections.abc import Iterator

from parallax_core.api import ConfigReader, LayerShape
from parallax_models.family import Family
from parallax_models.qwen3_next import read_mixers
from parallax_models.weights import add_weights, count_mlp, share_experts


def read_layers(settings: ConfigReader) -> Iterator[LayerShape]:
    """Yield the layers."""
    has_experts = settings.has("num_experts")
    for layer in read_mixers(settings):
        yield share_experts(settings, layer) if has_experts else add_weights(layer, count_mlp(settings))


ADAPTER = Family(read_layers, turns_part=True)

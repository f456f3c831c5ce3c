"""Qwen3.5 to 3.8, with experts or without, and the text part of those that see."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from parallax_core.api import ConfigReader, LayerShape
from parallax_models.family import Family
from parallax_models.qwen3_moe import read_experts
from parallax_models.qwen3_next import read_attention, read_delta_net, read_kinds
from parallax_models.sliding import FULL
from parallax_models.weights import gated_mlp


def read_layers(settings: ConfigReader) -> Iterator[LayerShape]:
    """Yield the layers."""
    mlp = count_experts if settings.has("num_experts") else count_dense
    for kind in read_kinds(settings):
        yield mlp(settings, read_attention(settings) if kind == FULL else read_delta_net(settings))


def count_dense(settings: ConfigReader, layer: LayerShape) -> LayerShape:
    """Return a layer with an MLP added."""
    weights = layer.weights + gated_mlp(settings.count("hidden_size"), settings.count("intermediate_size"))
    return replace(layer, weights=weights, active_weights=weights)


def count_experts(settings: ConfigReader, layer: LayerShape) -> LayerShape:
    """Return a layer with experts added, and a shared one with its gate."""
    hidden = settings.count("hidden_size")
    return read_experts(settings).join(
        layer, gated_mlp(hidden, settings.count("shared_expert_intermediate_size")) + hidden
    )


ADAPTER = Family(read_layers)

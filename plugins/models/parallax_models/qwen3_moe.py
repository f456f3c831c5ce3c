"""Qwen3 with experts."""

from __future__ import annotations

from collections.abc import Iterator

from parallax_core.api import ConfigReader, LayerShape
from parallax_models.family import Family
from parallax_models.qwen3 import LAYERS
from parallax_models.weights import Experts, add_weights, count_mlp


def read_layers(settings: ConfigReader) -> Iterator[LayerShape]:
    """Yield the layers."""
    layer, experts = LAYERS.read_attention(settings), read_experts(settings)
    dense = add_weights(layer, count_mlp(settings))
    for index in range(settings.count("num_hidden_layers")):
        yield experts.join(layer) if has_experts(index, settings) else dense


def read_experts(settings: ConfigReader) -> Experts:
    """Return the experts of a layer that has some."""
    return Experts.read(settings)


def has_experts(index: int, settings: ConfigReader) -> bool:
    """Whether the layer of this number has experts, by the rules of transformers."""
    step = settings.count("decoder_sparse_step", default=1)
    return index not in settings.list_numbers("mlp_only_layers") and (index + 1) % step == 0


ADAPTER = Family(read_layers)

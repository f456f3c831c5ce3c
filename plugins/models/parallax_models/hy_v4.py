"""Hy4: latent attention with gates and sinks to the tokens of an index, between four streams."""

from __future__ import annotations

from collections.abc import Iterator

from parallax_core.api import ConfigReader, LayerShape
from parallax_models import glm_moe_dsa
from parallax_models.streams import StreamFamily, spread
from parallax_models.weights import add_weights


def read_layers(settings: ConfigReader) -> Iterator[LayerShape]:
    """Yield the layers."""
    return spread(settings, _read_parts(settings), num_scales=2)


def _read_parts(settings: ConfigReader) -> Iterator[LayerShape]:
    """Yield the layers of GLM-5, with gates and sinks."""
    hidden, num = settings.count("hidden_size"), settings.count("num_attention_heads")
    extra = hidden * num * settings.count("v_head_dim") + num
    for layer in glm_moe_dsa.read_layers(settings):
        yield add_weights(layer, extra)


ADAPTER = StreamFamily(read_layers)

"""Hy4: latent attention with gates and sinks to the tokens of an index, between four streams."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from parallax_core.api import ConfigReader, LayerShape
from parallax_models import glm_moe_dsa
from parallax_models.streams import StreamFamily, spread
from parallax_models.weights import add_weights

DEFAULTS: Mapping[str, Any] = {"first_k_dense_replace": 1, "index_topk_freq": 4, "rms_norm_eps": 1e-5}
"""What config.json may leave out, under the names that DeepSeek and GLM have for it."""


def unify(settings: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return settings with the defaults of the family."""
    return {**DEFAULTS, **{name: value for name, value in settings.items() if value is not None}}


def read_layers(settings: ConfigReader) -> Iterator[LayerShape]:
    """Yield the layers."""
    return spread(settings, _read_parts(settings), num_scales=2)


def _read_parts(settings: ConfigReader) -> Iterator[LayerShape]:
    """Yield the layers of GLM-5, with gates and sinks."""
    hidden, num = settings.count("hidden_size"), settings.count("num_attention_heads")
    extra = hidden * num * settings.count("v_head_dim") + num
    for layer in glm_moe_dsa.read_layers(settings):
        yield add_weights(layer, extra)


ADAPTER = StreamFamily(read_layers, unify=unify)

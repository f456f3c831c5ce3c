"""Qwen1.5 and Qwen2 with experts."""

from __future__ import annotations

from collections.abc import Iterator

from parallax_core.api import ConfigReader, LayerShape
from parallax_models.family import Family
from parallax_models.qwen2 import list_kinds
from parallax_models.qwen3_moe import has_experts
from parallax_models.sliding import slide_layers
from parallax_models.weights import Heads, add_weights, count_mlp, share_experts


def read_layers(settings: ConfigReader) -> Iterator[LayerShape]:
    """Yield the layers; from ``max_window_layers`` on, they have a sliding window if the model uses one."""
    heads = Heads.read(settings)
    bias = settings.flag("qkv_bias", default=True)
    layer = heads.layer(heads.projections(bias=bias) + 2 * heads.hidden)
    for index, each in enumerate(slide_layers(layer, settings, list_kinds(settings))):
        is_sparse = has_experts(index, settings)
        yield share_experts(settings, each) if is_sparse else add_weights(each, count_mlp(settings))


ADAPTER = Family(read_layers)

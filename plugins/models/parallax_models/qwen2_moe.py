"""Qwen1.5 and Qwen2 with experts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from parallax_core.api import ConfigReader, LayerShape
from parallax_models.family import Family
from parallax_models.qwen2 import read_kinds
from parallax_models.qwen3_moe import has_experts, read_experts
from parallax_models.sliding import slide_layers
from parallax_models.weights import Heads, gated_mlp


def read_layers(settings: ConfigReader) -> Iterator[LayerShape]:
    """Yield the layers; from ``max_window_layers`` on, they have a sliding window if the model uses one."""
    heads, hidden = Heads.read(settings), settings.count("hidden_size")
    layer = heads.layer(heads.projections(bias=settings.flag("qkv_bias", default=True)) + 2 * hidden)
    dense = gated_mlp(hidden, settings.count("intermediate_size"))
    shared = gated_mlp(hidden, settings.count("shared_expert_intermediate_size")) + hidden  # and its gate
    for index, each in enumerate(slide_layers(layer, settings, read_kinds(settings))):
        if has_experts(index, settings):
            yield read_experts(settings).join(each, shared)
        else:
            yield replace(each, weights=each.weights + dense, active_weights=each.weights + dense)


ADAPTER = Family(read_layers)

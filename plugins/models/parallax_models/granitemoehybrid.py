"""Granite 4: Mamba 2, and attention in some layers; a shared MLP, with experts or without."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from parallax_core.api import ConfigReader, LayerShape
from parallax_models.family import Family
from parallax_models.mixtral import read_experts
from parallax_models.weights import MAMBA_FLOPS, Heads, gated_mlp

MAMBA, ATTENTION = ("mamba", "linear_attention"), ("attention", "full_attention")
"""The words for the kinds of layers, before transformers 5 and since."""


def read_layers(settings: ConfigReader) -> Iterator[LayerShape]:
    """Yield the layers."""
    heads, hidden, bias = (
        Heads.read(settings),
        settings.count("hidden_size"),
        settings.flag("attention_bias", default=False),
    )
    attention = heads.layer(heads.projections(bias=bias, output_bias=bias))
    shared = gated_mlp(hidden, settings.count("shared_intermediate_size")) + 2 * hidden
    for is_attention in read_kinds(settings):
        layer = attention if is_attention else read_mamba(settings)
        if settings.size("num_local_experts", 8):
            yield read_experts(settings).join(layer, shared)
        else:
            weights = layer.weights + shared
            yield replace(layer, weights=weights, active_weights=weights)


def read_kinds(settings: ConfigReader) -> tuple[bool, ...]:
    """Return whether each layer has attention, and not Mamba 2."""
    default = [MAMBA[0]] * settings.count("num_hidden_layers")
    name = "layer_types" if settings.has("layer_types") else "layers_block_type"
    return tuple(kind in ATTENTION for kind in settings.list_words(name, (*MAMBA, *ATTENTION), default))


def read_mamba(settings: ConfigReader) -> LayerShape:
    """Return a layer with Mamba 2 without its MLP."""
    hidden, num = settings.count("hidden_size"), settings.count("mamba_n_heads")
    inner = settings.count("mamba_expand", default=2) * hidden
    groups, state = settings.count("mamba_n_groups", default=1), settings.count("mamba_d_state", default=256)
    kernel, channels = settings.count("mamba_d_conv", default=4), inner + 2 * groups * state
    weights = hidden * (inner + channels + num) + channels * (kernel + settings.flag("mamba_conv_bias", default=True))
    weights += 3 * num + inner + inner * hidden
    weights += (inner + channels + num + hidden) * settings.flag("mamba_proj_bias", default=False)
    width = channels * (kernel - 1) + inner * state
    flops = MAMBA_FLOPS * inner * state
    return LayerShape(kind="state", weights=weights, active_weights=weights, state_width=width, state_flops=flops)


ADAPTER = Family(read_layers)

"""Qwen3-Next: gated delta nets, every few layers gated attention, experts."""

from __future__ import annotations

from collections.abc import Iterator

from parallax_core.api import ConfigReader, LayerShape
from parallax_models.family import Family
from parallax_models.qwen3 import LAYERS
from parallax_models.qwen3_moe import has_experts
from parallax_models.sliding import FULL, list_periodic
from parallax_models.weights import Heads, add_weights, count_mlp, share_experts

LINEAR = "linear_attention"
DELTA_FLOPS = 7
"""FLOPs of a token for each number of the matrices: they decay, are read by the key, written, and read by the query."""


def read_layers(settings: ConfigReader) -> Iterator[LayerShape]:
    """Yield the layers."""
    for index, layer in enumerate(read_mixers(settings)):
        is_sparse = has_experts(index, settings)
        yield share_experts(settings, layer) if is_sparse else add_weights(layer, count_mlp(settings))


def read_mixers(settings: ConfigReader) -> Iterator[LayerShape]:
    """Yield the layers without their MLPs."""
    for kind in read_kinds(settings):
        yield read_attention(settings) if kind == FULL else read_delta_net(settings)


def read_kinds(settings: ConfigReader) -> tuple[str, ...]:
    """Return the kind of each layer; every fourth is attention, unless config.json differs."""
    period = settings.count("full_attention_interval", default=4)
    return settings.list_words("layer_types", (FULL, LINEAR), list_periodic(settings, period, LINEAR))


def read_attention(settings: ConfigReader) -> LayerShape:
    """Return an attention layer without its MLP; the query projection also yields a gate of the same width."""
    heads, bias = Heads.read(settings), settings.flag("attention_bias", default=False)
    return add_weights(LAYERS.read_attention(settings), (heads.hidden + bias) * heads.queries)


def read_delta_net(settings: ConfigReader) -> LayerShape:
    """Return a layer with a gated delta net (arXiv 2412.06464) without its MLP.

    Its state is the last inputs of its convolution, and a matrix [key width, value width] for each value head.
    """
    hidden, kernel = settings.count("hidden_size"), settings.count("linear_conv_kernel_dim")
    num_keys, num_values = settings.count("linear_num_key_heads"), settings.count("linear_num_value_heads")
    key_width, value_width = settings.count("linear_key_head_dim"), settings.count("linear_value_head_dim")
    keys, values = num_keys * key_width, num_values * value_width
    channels = 2 * keys + values
    inputs = hidden * (2 * keys + 2 * values) + hidden * 2 * num_values
    weights = inputs + channels * kernel + 2 * num_values + value_width + values * hidden + 2 * hidden
    matrices = num_values * key_width * value_width
    return LayerShape(
        kind="state",
        weights=weights,
        active_weights=weights,
        state_width=channels * (kernel - 1) + matrices,
        state_flops=DELTA_FLOPS * matrices,
    )


ADAPTER = Family(read_layers, turns_part=True)

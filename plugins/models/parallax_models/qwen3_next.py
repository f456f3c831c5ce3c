"""Qwen3-Next: gated delta nets, every few layers gated attention, experts."""

from __future__ import annotations

from collections.abc import Iterator

from parallax_core.api import ConfigReader, LayerShape
from parallax_models.family import Family
from parallax_models.qwen3_moe import has_experts, read_experts
from parallax_models.sliding import FULL
from parallax_models.weights import Heads, gated_mlp

LINEAR = "linear_attention"
DELTA_FLOPS = 7
"""FLOPs of a token for each number of the matrices: they decay, are read by the key, written, and read by the query."""


def read_layers(settings: ConfigReader) -> Iterator[LayerShape]:
    """Yield the layers."""
    for index, kind in enumerate(read_kinds(settings)):
        mixer = read_attention(settings) if kind == FULL else read_delta_net(settings)
        weights, active = count_mlp(index, settings)
        sparse = has_experts(index, settings)
        yield LayerShape(
            kind=mixer.kind,
            weights=mixer.weights + weights,
            active_weights=mixer.active_weights + active,
            kv_width=mixer.kv_width,
            state_width=mixer.state_width,
            state_flops=mixer.state_flops,
            num_experts=settings.count("num_experts", "num_local_experts") if sparse else 0,
            num_active_experts=settings.count("num_experts_per_tok") if sparse else 0,
        )


def read_kinds(settings: ConfigReader) -> tuple[str, ...]:
    """Return the kind of each layer; every fourth is attention, unless config.json differs."""
    num_layers, period = settings.count("num_hidden_layers"), settings.count("full_attention_interval", default=4)
    default = [LINEAR if (index + 1) % period else FULL for index in range(num_layers)]
    return settings.list_words("layer_types", (FULL, LINEAR), default)


def read_attention(settings: ConfigReader) -> LayerShape:
    """Return an attention layer without its MLP; the query projection also yields a gate of the same width."""
    heads, bias = Heads.read(settings), settings.flag("attention_bias", default=False)
    gate = (heads.hidden + bias) * heads.queries
    weights = heads.projections(bias=bias, output_bias=bias) + gate + 2 * heads.width + 2 * heads.hidden
    return LayerShape(kind="full", weights=weights, active_weights=weights, kv_width=2 * heads.values)


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


def count_mlp(index: int, settings: ConfigReader) -> tuple[int, int]:
    """Return the parameters of the MLP of a layer: all, and those active for a token."""
    hidden = settings.count("hidden_size")
    if not has_experts(index, settings):
        dense = gated_mlp(hidden, settings.count("intermediate_size"))
        return dense, dense
    experts = read_experts(settings)
    shared = gated_mlp(hidden, settings.count("shared_expert_intermediate_size")) + hidden  # and its gate
    return experts.all + shared, experts.active + shared


ADAPTER = Family(read_layers)

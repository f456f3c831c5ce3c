"""Granite 4: Mamba 2, and attention in some layers; a shared MLP, with experts or without."""

from __future__ import annotations

from collections.abc import Iterator

from parallax_core.api import ConfigReader, LayerShape
from parallax_models.dense import Dense
from parallax_models.family import Family
from parallax_models.mixtral import read_experts
from parallax_models.weights import MambaWidths, add_weights, gated_mlp

MAMBA, ATTENTION = ("mamba", "linear_attention"), ("attention", "full_attention")
"""The words for the kinds of layers, before transformers 5 and since."""


def read_layers(settings: ConfigReader) -> Iterator[LayerShape]:
    """Yield the layers."""
    attention, hidden = Dense(norms=0).read_attention(settings), settings.count("hidden_size")
    shared = gated_mlp(hidden, settings.count("shared_intermediate_size")) + 2 * hidden
    conv_bias, bias = settings.flag("mamba_conv_bias", default=True), settings.flag("mamba_proj_bias", default=False)
    mamba = read_widths(settings).layer(conv_bias=conv_bias, bias=bias)
    for is_attention in read_kinds(settings):
        layer = add_weights(attention if is_attention else mamba, shared)
        yield read_experts(settings).join(layer) if settings.size("num_local_experts", 8) else layer


def read_kinds(settings: ConfigReader) -> tuple[bool, ...]:
    """Return whether each layer has attention, and not Mamba 2."""
    default = [MAMBA[0]] * settings.count("num_hidden_layers")
    name = "layer_types" if settings.has("layer_types") else "layers_block_type"
    return tuple(kind in ATTENTION for kind in settings.list_words(name, (*MAMBA, *ATTENTION), default))


def read_widths(settings: ConfigReader) -> MambaWidths:
    """Return the widths of Mamba 2."""
    hidden, state = settings.count("hidden_size"), settings.count("mamba_d_state", default=256)
    return MambaWidths(
        hidden=hidden,
        num=settings.count("mamba_n_heads"),
        inner=settings.count("mamba_d_ssm", default=settings.count("mamba_expand", default=2) * hidden),
        keys=settings.count("mamba_n_groups", default=1) * state,
        state=state,
        kernel=settings.count("mamba_d_conv", default=4),
    )


ADAPTER = Family(read_layers)

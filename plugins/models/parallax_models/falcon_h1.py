"""Falcon-H1: attention and Mamba 2 side by side in every layer."""

from __future__ import annotations

from collections.abc import Iterator

from parallax_core.api import ConfigReader, LayerShape
from parallax_models.dense import Dense
from parallax_models.family import Family
from parallax_models.weights import MambaWidths, add_weights


def read_layers(settings: ConfigReader) -> Iterator[LayerShape]:
    """Yield the layers, which keep keys and values, and a state."""
    state, bias = read_mamba(settings), settings.flag("projectors_bias", default=False)
    weights = state.weights + settings.count("hidden_size") * bias
    for layer in Dense()(settings):
        yield add_weights(layer, weights, state_width=state.state_width, state_flops=state.state_flops)


def read_mamba(settings: ConfigReader) -> LayerShape:
    """Return a layer of Mamba 2 alone, without the bias of its output."""
    hidden, state = settings.count("hidden_size"), settings.count("mamba_d_state", default=256)
    widths = MambaWidths(
        hidden=hidden,
        num=settings.count("mamba_n_heads"),
        inner=settings.count("mamba_d_ssm", default=settings.count("mamba_expand", default=2) * hidden),
        keys=settings.count("mamba_n_groups", default=1) * state,
        state=state,
        kernel=settings.count("mamba_d_conv", default=4),
    )
    bias = settings.flag("mamba_proj_bias", default=False)
    layer = widths.layer(
        conv_bias=settings.flag("mamba_conv_bias", default=True),
        bias=bias,
        has_norm=settings.flag("mamba_rms_norm", default=False),
    )
    return add_weights(layer, -hidden * bias)


ADAPTER = Family(read_layers)

"""Falcon-H1: attention and Mamba 2 side by side in every layer."""

from __future__ import annotations

from collections.abc import Iterator

from parallax_core.api import ConfigReader, LayerShape
from parallax_models.dense import Dense
from parallax_models.family import Family
from parallax_models.granitemoehybrid import read_widths
from parallax_models.weights import add_weights


def read_layers(settings: ConfigReader) -> Iterator[LayerShape]:
    """Yield the layers, which keep keys and values, and a state."""
    widths, into = read_widths(settings), settings.flag("mamba_proj_bias", default=False)
    conv_bias, has_norm = settings.flag("mamba_conv_bias", default=True), settings.flag("mamba_rms_norm", default=False)
    state = widths.layer(conv_bias=conv_bias, bias=into, has_norm=has_norm)
    back = settings.flag("projectors_bias", default=False)
    weights = state.weights + widths.hidden * (back - into)
    for layer in Dense()(settings):
        yield add_weights(layer, weights, state_width=state.state_width, state_flops=state.state_flops)


ADAPTER = Family(read_layers)

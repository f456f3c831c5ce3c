"""Llama, and models of the same structure."""

from __future__ import annotations

from collections.abc import Iterator

from parallax_core.api import ConfigReader, LayerShape
from parallax_models.family import Family
from parallax_models.weights import Heads, gated_mlp


def read_layers(settings: ConfigReader) -> Iterator[LayerShape]:
    """Yield the layers."""
    heads, bias = Heads.read(settings), settings.flag("attention_bias", default=False)
    attention = heads.projections(bias=bias, output_bias=bias)
    mlp = gated_mlp(heads.hidden, settings.count("intermediate_size"), bias=settings.flag("mlp_bias", default=False))
    weights = attention + mlp + 2 * heads.hidden
    for _ in range(settings.count("num_hidden_layers")):
        yield LayerShape(kind="full", weights=weights, active_weights=weights, kv_width=2 * heads.values)


ADAPTER = Family(read_layers)

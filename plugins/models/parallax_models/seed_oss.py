"""Seed-OSS."""

from __future__ import annotations

from collections.abc import Iterator

from parallax_core.api import ConfigReader, LayerShape
from parallax_models.family import Family
from parallax_models.weights import Heads, gated_mlp


def read_layers(settings: ConfigReader) -> Iterator[LayerShape]:
    """Yield the layers."""
    heads, bias = Heads.read(settings), settings.flag("attention_bias", default=True)
    attention = heads.projections(bias=bias, output_bias=settings.flag("attention_out_bias", default=False))
    mlp = gated_mlp(heads.hidden, settings.count("intermediate_size"), bias=settings.flag("mlp_bias", default=False))
    for _ in range(settings.count("num_hidden_layers")):
        yield heads.layer(attention + mlp + 2 * heads.hidden)


ADAPTER = Family(read_layers)

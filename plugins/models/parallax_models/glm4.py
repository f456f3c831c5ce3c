"""GLM-4, dense."""

from __future__ import annotations

from collections.abc import Iterator

from parallax_core.api import ConfigReader, LayerShape
from parallax_models.family import Family
from parallax_models.weights import Heads, gated_mlp


def read_layers(settings: ConfigReader) -> Iterator[LayerShape]:
    """Yield the layers."""
    heads = Heads.read(settings)
    attention = heads.projections(bias=settings.flag("attention_bias", default=True))
    weights = attention + gated_mlp(heads.hidden, settings.count("intermediate_size")) + 4 * heads.hidden
    for _ in range(settings.count("num_hidden_layers")):
        yield heads.layer(weights)


ADAPTER = Family(read_layers)

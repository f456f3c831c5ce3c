"""OLMo 3."""

from __future__ import annotations

from collections.abc import Iterator

from parallax_core.api import ConfigReader, LayerShape
from parallax_models.family import Family
from parallax_models.sliding import FULL, SLIDING, slide_layers
from parallax_models.weights import Heads, gated_mlp


def read_layers(settings: ConfigReader) -> Iterator[LayerShape]:
    """Yield the layers; every fourth has full attention, unless config.json differs."""
    heads, bias = Heads.read(settings), settings.flag("attention_bias", default=False)
    attention = heads.projections(bias=bias, output_bias=bias) + heads.queries + heads.values
    layer = heads.layer(attention + gated_mlp(heads.hidden, settings.count("intermediate_size")) + 2 * heads.hidden)
    kinds = [SLIDING if (index + 1) % 4 else FULL for index in range(settings.count("num_hidden_layers"))]
    yield from slide_layers(layer, settings, kinds)


ADAPTER = Family(read_layers)

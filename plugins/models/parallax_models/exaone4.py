"""EXAONE 4: layers with full attention beside windows do not know positions."""

from __future__ import annotations

from collections.abc import Iterator

from parallax_core.api import ConfigReader, LayerShape
from parallax_models.family import Family
from parallax_models.sliding import FULL, SLIDING, slide_layers
from parallax_models.weights import Heads, gated_mlp


def read_layers(settings: ConfigReader) -> Iterator[LayerShape]:
    """Yield the layers; every fourth has full attention, unless config.json differs."""
    heads = Heads.read(settings)
    mlp = gated_mlp(heads.hidden, settings.count("intermediate_size"))
    layer = heads.layer(heads.projections() + 2 * heads.width + mlp + 2 * heads.hidden)
    period = settings.count("sliding_window_pattern", default=4) if settings.has("sliding_window") else 1
    kinds = [SLIDING if (index + 1) % period else FULL for index in range(settings.count("num_hidden_layers"))]
    yield from slide_layers(layer, settings, kinds)


ADAPTER = Family(read_layers)

"""Phi-3 and Phi-4."""

from __future__ import annotations

from collections.abc import Iterator

from parallax_core.api import ConfigReader, LayerShape
from parallax_models.family import Family
from parallax_models.weights import Heads, gated_mlp


def read_layers(settings: ConfigReader) -> Iterator[LayerShape]:
    """Yield the layers; all have a sliding window if the model has one."""
    heads = Heads.read(settings)
    weights = heads.projections() + gated_mlp(heads.hidden, settings.count("intermediate_size")) + 2 * heads.hidden
    for _ in range(settings.count("num_hidden_layers")):
        yield heads.layer(weights, settings.size("sliding_window", 0))


ADAPTER = Family(read_layers)

"""MiniMax-M2."""

from __future__ import annotations

from collections.abc import Iterator

from parallax_core.api import ConfigReader, LayerShape
from parallax_models.family import Family
from parallax_models.mixtral import read_experts
from parallax_models.weights import Heads


def read_layers(settings: ConfigReader) -> Iterator[LayerShape]:
    """Yield the layers; queries and keys are normalised over all heads together."""
    heads, experts = Heads.read(settings), read_experts(settings)
    layer = heads.layer(heads.projections() + heads.queries + heads.values + 2 * heads.hidden)
    for _ in range(settings.count("num_hidden_layers")):
        yield experts.join(layer, experts.num)  # the router's correction


ADAPTER = Family(read_layers)

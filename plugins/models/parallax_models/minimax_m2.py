"""MiniMax-M2: norms of all queries and keys together, and experts."""

from __future__ import annotations

from collections.abc import Iterator

from parallax_core.api import ConfigReader, LayerShape
from parallax_models.dense import Dense
from parallax_models.family import Family
from parallax_models.mixtral import read_experts

LAYERS = Dense(bias=None, head_norms="all")


def read_layers(settings: ConfigReader) -> Iterator[LayerShape]:
    """Yield the layers, with a correction of the router."""
    experts = read_experts(settings)
    yield from [experts.join(LAYERS.read_attention(settings), experts.num)] * settings.count("num_hidden_layers")


ADAPTER = Family(read_layers)

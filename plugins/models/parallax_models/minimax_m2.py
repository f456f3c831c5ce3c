"""MiniMax-M2: norms of all queries and keys together, and experts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from parallax_core.api import ConfigReader, LayerShape
from parallax_models.dense import Dense
from parallax_models.family import Family
from parallax_models.mixtral import read_experts

LAYERS = Dense(bias=None, head_norms="all")


def unify(settings: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return settings with the share of a head that rope turns, for which published files have a width."""
    reader = ConfigReader(settings)
    if not reader.has("rotary_dim"):
        return settings
    return {"partial_rotary_factor": reader.count("rotary_dim") / reader.count("head_dim", default=128), **settings}


def read_layers(settings: ConfigReader) -> Iterator[LayerShape]:
    """Yield the layers, with a correction of the router."""
    experts = read_experts(settings)
    yield from [experts.join(LAYERS.read_attention(settings), experts.num)] * settings.count("num_hidden_layers")


ADAPTER = Family(read_layers, unify=unify, turns_part=True)

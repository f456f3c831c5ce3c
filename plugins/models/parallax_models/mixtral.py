"""Mixtral."""

from __future__ import annotations

from collections.abc import Iterator

from parallax_core.api import ConfigReader, LayerShape
from parallax_models.family import Family
from parallax_models.weights import Experts, Heads


def read_layers(settings: ConfigReader) -> Iterator[LayerShape]:
    """Yield the layers."""
    heads, window = Heads.read(settings), settings.size("sliding_window", 0)
    layer = heads.layer(heads.projections() + 2 * heads.hidden, window)
    for _ in range(settings.count("num_hidden_layers")):
        yield read_experts(settings).join(layer)


def read_experts(settings: ConfigReader) -> Experts:
    """Return the experts of a layer."""
    return Experts(
        hidden=settings.count("hidden_size"),
        inner=settings.count("intermediate_size"),
        num=settings.count("num_local_experts", "num_experts"),
        num_chosen=settings.count("num_experts_per_tok"),
    )


ADAPTER = Family(read_layers)

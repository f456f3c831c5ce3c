"""LFM2 with experts."""

from __future__ import annotations

from collections.abc import Iterator

from parallax_core.api import ConfigReader, LayerShape
from parallax_models.family import Family
from parallax_models.lfm2 import CONV, read_conv, read_kinds, unify
from parallax_models.weights import Experts, Heads, add_weights, count_mlp


def read_layers(settings: ConfigReader) -> Iterator[LayerShape]:
    """Yield the layers: short convolutions or attention; the first with an MLP, the others with experts."""
    heads, experts = Heads.read(settings), Experts.read(settings)
    norms, num_dense = 2 * heads.hidden, settings.size("num_dense_layers", 2)
    attention = heads.layer(heads.projections() + 2 * heads.width + norms)
    correction = experts.num * settings.flag("use_expert_bias", default=True)
    for index, kind in enumerate(read_kinds(settings)):
        layer = read_conv(settings, norms) if kind == CONV else attention
        if index < num_dense:
            yield add_weights(layer, count_mlp(settings))
        else:
            yield experts.join(layer, correction)


ADAPTER = Family(read_layers, is_tied=True, unify=unify)

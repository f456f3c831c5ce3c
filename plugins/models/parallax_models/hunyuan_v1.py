"""Hunyuan 1, with experts or without."""

from __future__ import annotations

from collections.abc import Iterator

from parallax_core.api import ConfigReader, LayerShape
from parallax_models.dense import Dense
from parallax_models.family import Family
from parallax_models.weights import Experts, add_weights, count_mlp

LAYERS = Dense(head_norms="each")


def read_layers(settings: ConfigReader) -> Iterator[LayerShape]:
    """Yield the layers; an MLP that every token meets is as wide as an expert."""
    layer, mlp = LAYERS.read_attention(settings), count_mlp(settings)
    for index in range(settings.count("num_hidden_layers")):
        experts = read_experts(settings, index)
        yield experts.join(layer, mlp) if experts else add_weights(layer, mlp)


def read_experts(settings: ConfigReader, index: int) -> Experts | None:
    """Return the experts of a layer, whose number may differ between layers; None: it is an MLP."""
    num, chosen = (_pick(settings, name, index) for name in ("num_experts", "moe_topk"))
    if not settings.has("moe_topk") or num <= 1:
        return None
    hidden, inner = settings.count("hidden_size"), settings.count("intermediate_size")
    return Experts(hidden=hidden, inner=inner, num=num, num_chosen=chosen)


def _pick(settings: ConfigReader, name: str, index: int) -> int:
    """Return a setting of a layer, which may be one number for all."""
    if isinstance(settings.raw.get(name), list):
        return (*settings.list_numbers(name), *[1] * (index + 1))[index]
    return settings.count(name, default=1)


ADAPTER = Family(read_layers)

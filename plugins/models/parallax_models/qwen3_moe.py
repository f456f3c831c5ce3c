"""Qwen3 with experts."""

from __future__ import annotations

from collections.abc import Iterator

from parallax_core.api import ConfigReader, LayerShape
from parallax_models.family import Family
from parallax_models.qwen3 import count_attention
from parallax_models.weights import Experts, Heads, gated_mlp


def read_layers(settings: ConfigReader) -> Iterator[LayerShape]:
    """Yield the layers."""
    heads = Heads.read(settings)
    common = count_attention(heads, settings) + 2 * heads.hidden
    dense = gated_mlp(heads.hidden, settings.count("intermediate_size"))
    experts = read_experts(settings)
    for index in range(settings.count("num_hidden_layers")):
        sparse = has_experts(index, settings)
        yield LayerShape(
            kind="full",
            weights=common + (experts.all if sparse else dense),
            active_weights=common + (experts.active if sparse else dense),
            kv_width=2 * heads.values,
            num_experts=experts.num if sparse else 0,
            num_active_experts=experts.num_chosen if sparse else 0,
        )


def read_experts(settings: ConfigReader) -> Experts:
    """Return the experts of a layer that has some."""
    return Experts(
        hidden=settings.count("hidden_size"),
        inner=settings.count("moe_intermediate_size"),
        num=settings.count("num_experts", "num_local_experts"),
        num_chosen=settings.count("num_experts_per_tok"),
    )


def has_experts(index: int, settings: ConfigReader) -> bool:
    """Whether the layer of this number has experts, by the rules of transformers."""
    step = settings.count("decoder_sparse_step", default=1)
    return index not in settings.list_numbers("mlp_only_layers") and (index + 1) % step == 0


ADAPTER = Family(read_layers)

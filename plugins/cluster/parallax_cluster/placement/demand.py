"""Computes what each layer of a model takes, in bytes and FLOPs, from its shape."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from parallax_core.api import (
    LayerDemand,
    LayerRange,
    LayerShape,
    LoadedSize,
    ModelDemand,
    ModelShape,
    count_border_bytes,
    list_borders,
)

FLOPS_PER_WEIGHT = 2
"""A multiplication and an addition for each weight and token (Kaplan et al., arXiv 2001.08361, section 2.1)."""


def measure_demand(
    shape: ModelShape, weight_bytes: float = 2.0, value_bytes: int = 2, size: LoadedSize | None = None
) -> ModelDemand:
    """Return what a model takes.

    Args:
        shape: of the model, from its adapter.
        weight_bytes: bytes per weight as loaded; a fraction if the weights are quantized.
        value_bytes: bytes per value of the KV cache, the states and the hidden states.
        size: what it takes as a backend loads it, in place of both; None: the backend does not tell.
    """
    if size is None:
        totals = [round((layer.weights - layer.table_weights) * weight_bytes) for layer in shape.layers]
        embedding, after = round(shape.before_weights * weight_bytes), round(shape.after_weights * weight_bytes)
        size = LoadedSize(layers=tuple(totals), before=embedding, after=after, value_bytes=value_bytes)
    embedding, after, value_bytes = size.before, size.after, size.value_bytes
    experts = size.experts or [_share_experts(*each) for each in zip(shape.layers, size.layers, strict=True)]
    taken = zip(shape.layers, size.layers, experts, strict=True)
    layers = [_measure_layer(layer, shape, each, value_bytes) for layer, *each in taken]
    layers[0] = dataclasses.replace(layers[0], weights=layers[0].weights + embedding)
    head_weights = shape.before_weights if shape.is_tied else shape.after_weights
    head, last = after + embedding * shape.is_tied, layers[-1]
    layers[-1] = dataclasses.replace(
        last, weights=last.weights + head, read=last.read + head, draw_flops=FLOPS_PER_WEIGHT * head_weights
    )
    shared = embedding if shape.is_tied else 0
    borders = tuple(count_border_bytes(border, value_bytes) for border in list_borders(shape))
    hidden = max(borders, default=0) or shape.hidden_size * value_bytes
    return add_adapters(ModelDemand(layers=tuple(layers), hidden=hidden, shared=shared, borders=borders), size.adapters)


def add_adapters(model: ModelDemand, adapters: Sequence[int]) -> ModelDemand:
    """Return the demand of a model with bytes kept for adapters beside each layer; a step reads few of them."""
    pairs = zip(model.layers, adapters or [0] * len(model.layers), strict=True)
    layers = [dataclasses.replace(layer, weights=layer.weights + kept) for layer, kept in pairs]
    return dataclasses.replace(model, layers=tuple(layers))


def weigh_layers(model: ModelDemand, layers: LayerRange) -> int:
    """Return the bytes of the weights of layers on one node; what the first and the last share counts once."""
    whole = layers.start == 0 and layers.stop == len(model.layers)
    return sum(layer.weights for layer in model.layers[layers.start : layers.stop]) - whole * model.shared


def _share_experts(layer: LayerShape, total: int) -> int:
    """Return the bytes of the experts of a layer that takes ``total`` bytes, as their share of its weights."""
    return total * layer.expert_weights // max(layer.weights - layer.table_weights, 1)


def _measure_layer(layer: LayerShape, shape: ModelShape, taken: Sequence[int], value_bytes: int) -> LayerDemand:
    """Return what a layer takes; ``taken``: the bytes of its weights, and those in experts."""
    total, experts = taken
    is_both = layer.long_width > 0  # then the window counts as a state: the rest grows with the sequence
    return LayerDemand(
        weights=total,
        read=total - experts,
        flops=FLOPS_PER_WEIGHT * layer.active_weights + layer.state_flops,
        experts=experts,
        num_experts=layer.num_experts,
        num_active_experts=layer.num_active_experts,
        context_flops=_count_context_flops(layer, shape),
        kv=(layer.long_width if is_both else layer.kv_width) * value_bytes,
        borrowed_kv=0 if layer.source is None else shape.layers[layer.source].kv_width * value_bytes,
        state=(layer.window * layer.kv_width if is_both else layer.state_width) * value_bytes,
        window=0 if is_both else layer.window,
    )


def _count_context_flops(layer: LayerShape, shape: ModelShape) -> int:
    """Return the FLOPs per token attended to: as the adapter says, or scores and weighted sum over all query heads.

    With a latent cache, each head multiplies with the whole latent (DeepSeek-V2, arXiv 2405.04434, section 2.1.2).
    """
    if layer.context_flops is not None:
        return layer.context_flops
    if layer.kind == "state" or not (layer.kv_width or layer.source is not None):
        return 0
    width = layer.kv_width if layer.kind == "latent" else shape.head_dim
    return 2 * FLOPS_PER_WEIGHT * shape.num_heads * width

"""Guesses the shape of a model without an adapter, from its numbers of parameters and layers."""

from __future__ import annotations

import re
from math import sqrt

from parallax_core.api import LayerShape, ModelShape, UsageError

VOCABULARY = 128_256
HEAD_WIDTH = 128
KV_HEADS = 8
ATTENTION = 2.5
"""Weights of a layer's attention, in squares of the width: queries and output, and grouped keys and values."""
LAYER = 12
"""Weights of a layer that a token meets, in squares of the width."""
EXPERTS = 128
UNITS = {"": 1, "m": 10**6, "b": 10**9, "t": 10**12}


def read_count(text: str, option: str) -> int:
    """Return a number of parameters such as ``24B``, ``1.5b`` or ``350M``.

    Raises:
        UsageError: if it is none; the message names ``option``.
    """
    found = re.fullmatch(r"(\d{1,12}(?:\.\d{1,6})?) *([mbt]?)", text.strip().lower())
    number = round(float(found[1]) * UNITS[found[2]]) if found else 0
    if not 10**6 <= number <= 10**14:
        raise UsageError(f"{option} is {text!r}", "write a number of parameters, such as 24B or 350M")
    return number


def guess_shape(params: int, num_layers: int, active: int | None = None) -> ModelShape:
    """Return the shape that models of such a size usually have.

    All layers are alike, with grouped keys and values of 8 heads of 128, an embedding and an output head. Where a token
    meets fewer parameters than there are, the rest is in 128 experts a layer.

    Args:
        params: of the whole model.
        num_layers: layers.
        active: parameters that a token meets; None: all.

    Raises:
        UsageError: if ``active`` is more than ``params``, or too little is left for the layers.
    """
    met = params if active is None else active
    if met > params:
        raise UsageError(f"--active is {met:,}, more than --params with {params:,}", "give the parameters of one token")
    width = (sqrt(VOCABULARY**2 + LAYER * num_layers * met) - VOCABULARY) / (LAYER * num_layers)
    table = round(VOCABULARY * width)
    weights, active_weights = (params - 2 * table) // num_layers, (met - 2 * table) // num_layers
    routed = weights - round(ATTENTION * width**2)
    chosen = max(1, round(EXPERTS * (1 - (weights - active_weights) / routed))) if met < params else 0
    layer = LayerShape(
        kind="full",
        weights=weights,
        active_weights=weights - (routed * (EXPERTS - chosen) // EXPERTS if chosen else 0),
        kv_width=2 * min(KV_HEADS * HEAD_WIDTH, round(width / 2)),
        num_experts=EXPERTS if chosen else 0,
        num_active_experts=chosen,
    )
    return ModelShape(
        hidden_size=max(HEAD_WIDTH, round(width)),
        vocab_size=VOCABULARY,
        context_length=131_072,
        num_heads=max(1, round(width / HEAD_WIDTH)),
        num_kv_heads=KV_HEADS,
        head_dim=HEAD_WIDTH,
        layers=(layer,) * num_layers,
        before_weights=table,
        after_weights=table,
        is_tied=False,
    )

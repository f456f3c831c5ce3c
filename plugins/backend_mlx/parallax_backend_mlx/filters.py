"""Finds the tokens that top_k, top_p and min_p keep, for many rows at once.

Filters are thresholds on the logits, found by bisection over the bits of a float32: 32 rounds of one sum each, without
a sort. Probabilities are summed as 64-bit integers, so the sum does not depend on its order, and a row keeps the same
tokens alone and in a batch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from parallax_backend_mlx.adjust import make_column
from parallax_backend_mlx.float_order import LEAST_FINITE
from parallax_backend_mlx.runtime import mx
from parallax_core.api import Sampling

UNIT = 2.0**40
"""The weight of the best token in sums; the sum of up to 2**24 tokens fits 64 bits."""


@dataclass(frozen=True, slots=True)
class Candidates:
    """Tokens to choose among: the whole vocabulary, or its best tokens."""

    keys: mx.array
    """Logits as integers of the same order, uint32 of shape [rows, tokens]."""
    scaled: mx.array
    """Logits minus the largest one, divided by the temperature, float32 of the same shape."""

    @property
    def weights(self) -> mx.array:
        """The weight of each token, in units of `UNIT`, as float32."""
        return mx.exp(self.scaled) * UNIT

    def take(self, rows: list[int]) -> Candidates:
        """Return the tokens of some rows, in ascending order; of all without a copy."""
        if len(rows) == len(self.keys):
            return self
        chosen = mx.array(rows)
        return Candidates(self.keys[chosen], self.scaled[chosen])

    def pick(self, ids: mx.array) -> Candidates:
        """Return the tokens at ``ids``, of shape [rows, picked]."""
        return Candidates(mx.take_along_axis(self.keys, ids, axis=-1), mx.take_along_axis(self.scaled, ids, axis=-1))


def find_border(field: Candidates, whole: Candidates, samplings: Sequence[Sampling]) -> mx.array:
    """Return the key of the smallest logit that top_k and top_p keep, uint32 of shape [rows, 1].

    Args:
        field: the tokens to search: ``whole``, or its best tokens; then a border that is not above the smallest key of
            the field may be wrong.
        whole: the whole vocabulary.
        samplings: one for each row.
    """
    size = whole.keys.shape[-1]
    border = mx.full((len(samplings), 1), LEAST_FINITE, dtype=mx.uint32)
    counts = [min(sampling.top_k, size) or size for sampling in samplings]
    if any(count < size for count in counts):
        wanted = mx.array(counts, dtype=mx.uint32).reshape(-1, 1)
        found = _bisect(lambda key: mx.sum(field.keys >= key, axis=-1, keepdims=True) >= wanted)
        border = mx.maximum(border, found)
    shares = [sampling.top_p for sampling in samplings]
    if any(share < 1 for share in shares):
        nucleus = _find_nucleus(field, _add_weights(whole, border), border, make_column(shares))
        border = mx.where(make_column(shares) < 1, mx.maximum(border, nucleus), border)
    return border


def keep_probable(scaled: mx.array, samplings: Sequence[Sampling]) -> mx.array | None:
    """Return which tokens min_p keeps, bool of the shape of ``scaled``; None if no row uses it."""
    if not any(sampling.min_p for sampling in samplings):
        return None
    least = [math.log(sampling.min_p) if sampling.min_p else -math.inf for sampling in samplings]
    return scaled >= make_column(least)


def _add_weights(field: Candidates, border: mx.array) -> mx.array:
    """Return the sum of the weights of tokens not below ``border``, uint64 of shape [rows, 1]."""
    return mx.sum(mx.where(field.keys >= border, field.weights, 0).astype(mx.uint64), axis=-1, keepdims=True)


def _find_nucleus(field: Candidates, total: mx.array, border: mx.array, shares: mx.array) -> mx.array:
    """Return the largest key so that the weights from it up sum to at least their share of ``total``."""
    weights = mx.where(field.keys >= border, field.weights, 0).astype(mx.uint64)
    goal = mx.ceil(total.astype(mx.float32) * shares).astype(mx.uint64)
    goal = mx.clip(goal, mx.array(1, dtype=mx.uint64), total)
    nothing = mx.array(0, dtype=mx.uint64)
    return _bisect(lambda key: mx.sum(mx.where(field.keys >= key, weights, nothing), axis=-1, keepdims=True) >= goal)


def _bisect(holds: Callable[[mx.array], mx.array]) -> mx.array:
    """Return the largest key for which ``holds`` is true, bit by bit; ``holds`` is true up to that key, false above."""
    key = mx.array(0, dtype=mx.uint32)
    for bit in range(31, -1, -1):
        higher = key | mx.array(1 << bit, dtype=mx.uint32)
        key = mx.where(holds(higher), higher, key)
    return key

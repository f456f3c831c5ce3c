"""Finds the tokens that top_k, top_p and min_p keep, for many rows at once.

Filters are thresholds on the logits, found by bisection over the bits of a float32: 32 rounds of one sum each, without
a sort. Probabilities are summed as 64-bit integers, so the sum does not depend on its order, and a row keeps the same
tokens alone and in a batch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from parallax_core.api import Sampling
from parallax_sampling_torch.adjust import make_column
from parallax_sampling_torch.float_order import LEAST_FINITE, bisect_keys

UNIT = 2.0**40
"""The weight of the best token in sums; the sum of up to 2**23 tokens fits 63 bits."""


@dataclass(frozen=True, slots=True)
class Candidates:
    """Tokens to choose among: the whole vocabulary, or its best tokens."""

    keys: torch.Tensor
    """Logits as integers of the same order, int32 of shape [rows, tokens]."""
    scaled: torch.Tensor
    """Logits minus the largest one, divided by the temperature, float32 of the same shape."""

    def weigh(self, border: torch.Tensor) -> torch.Tensor:
        """Return the weight of each token in units of `UNIT`, int64; 0 below ``border``, of shape [rows, 1]."""
        return torch.where(self.keys >= border, self.scaled.exp() * UNIT, 0.0).to(torch.int64)

    def take(self, rows: list[int]) -> Candidates:
        """Return the tokens of some rows, in ascending order; of all without a copy."""
        if len(rows) == len(self.keys):
            return self
        return Candidates(self.keys[rows], self.scaled[rows])

    def pick(self, ids: torch.Tensor) -> Candidates:
        """Return the tokens at ``ids``, int64 of shape [rows, picked]."""
        return Candidates(self.keys.gather(-1, ids), self.scaled.gather(-1, ids))


def find_border(field: Candidates, whole: Candidates, samplings: Sequence[Sampling]) -> torch.Tensor:
    """Return the key of the smallest logit that top_k and top_p keep, int32 of shape [rows, 1].

    Args:
        field: the tokens to search: ``whole``, or its best tokens; then a border that is not above the smallest key of
            the field may be wrong.
        whole: the whole vocabulary.
        samplings: one for each row.
    """
    size, device = whole.keys.shape[-1], whole.keys.device
    border = torch.full((len(samplings), 1), LEAST_FINITE, dtype=torch.int32, device=device)
    counts = [min(sampling.top_k, size) or size for sampling in samplings]
    if any(count < size for count in counts):
        wanted = torch.tensor(counts, device=device)[:, None]
        found = bisect_keys(lambda key: (field.keys >= key).sum(-1, keepdim=True) >= wanted, border)
        border = torch.maximum(border, found)
    shares = [sampling.top_p for sampling in samplings]
    if any(share < 1 for share in shares):
        column = make_column(shares, device)
        nucleus = _find_nucleus(field.weigh(border), field.keys, whole.weigh(border).sum(-1, keepdim=True), column)
        border = torch.where(column < 1, torch.maximum(border, nucleus), border)
    return border


def keep_probable(scaled: torch.Tensor, samplings: Sequence[Sampling]) -> torch.Tensor | None:
    """Return which tokens min_p keeps, bool of the shape of ``scaled``; None if no row uses it."""
    if not any(sampling.min_p for sampling in samplings):
        return None
    least = [math.log(sampling.min_p) if sampling.min_p else -math.inf for sampling in samplings]
    return scaled >= make_column(least, scaled.device)


def _find_nucleus(weights: torch.Tensor, keys: torch.Tensor, total: torch.Tensor, shares: torch.Tensor) -> torch.Tensor:
    """Return the largest key so that the weights from it up sum to at least their share of ``total``."""
    goal = torch.ceil(total.to(torch.float64) * shares).to(torch.int64)
    goal = torch.minimum(goal.clamp(min=1), total)
    return bisect_keys(lambda key: torch.where(keys >= key, weights, 0).sum(-1, keepdim=True) >= goal, keys)

"""The sampler in plain Python: slow, obvious, and what every backend's batched sampler is tested against.

Order: temperature, top_k, top_p, draw. Ties at a filter's border are kept, so no filter depends on the order of
tokens; ties of the final score go to the lowest token id.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from parallax_core.contracts.sample import Sampling
from parallax_core.sampling.draw import draw_key, gumbel, hash32


def draw(logits: Sequence[float], sampling: Sampling, position: int) -> int:
    """Return the token drawn from ``logits`` (one per token id) for ``position``; see `draw_key`."""
    if sampling.temperature == 0:
        return max(range(len(logits)), key=lambda token: (logits[token], -token))
    scaled = [logit / sampling.temperature for logit in logits]
    key = draw_key(sampling.seed, position)
    return max(
        keep(scaled, sampling),
        key=lambda token: (scaled[token] + gumbel(hash32(key, token)), -token),
    )


def keep(scaled: Sequence[float], sampling: Sampling) -> list[int]:
    """Return the token ids that pass top_k, then top_p, given logits already divided by the temperature.

    top_k keeps every logit not below the k-th largest. top_p takes the softmax over those and keeps every
    probability not below t, where t is the largest value for which the kept probabilities sum to at least top_p.
    """
    kept = list(range(len(scaled)))
    if 0 < sampling.top_k < len(kept):
        border = sorted(scaled, reverse=True)[sampling.top_k - 1]
        kept = [token for token in kept if scaled[token] >= border]
    if sampling.top_p < 1:
        kept = _nucleus(scaled, kept, sampling.top_p)
    return kept


def _nucleus(scaled: Sequence[float], kept: Sequence[int], top_p: float) -> list[int]:
    top = max(scaled[token] for token in kept)
    weights = {token: math.exp(scaled[token] - top) for token in kept}
    goal = top_p * math.fsum(weights.values())
    total = 0.0
    border = 0.0
    for weight in sorted(weights.values(), reverse=True):
        total += weight
        border = weight
        if total >= goal:
            break
    return [token for token in kept if weights[token] >= border]

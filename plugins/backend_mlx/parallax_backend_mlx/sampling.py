"""The draw of `parallax_core.api.draw` for many rows at once, in MLX arrays.

Filters are thresholds on the logits, found by bisection over the bits of a float32: 32 rounds, each one sum over the
vocabulary, with no sort. Float32 values are compared as integers of the same order. Probabilities are summed as 64-bit
integers, so the sum does not depend on its order, and a row draws the same alone and in a batch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from parallax_backend_mlx.adjust import adjust_logits, make_column
from parallax_backend_mlx.order import LEAST_FINITE, map_floats
from parallax_backend_mlx.runtime import mx
from parallax_core.api import GOLDEN32, Draft, Sampling, draw_key

UNIT = 2.0**40
"""What probability 1 of the best token counts in sums; up to 2**24 tokens fit 64 bits."""
LOWEST = -3.4e38
"""Below every score, and above minus infinity."""


class Sampler:
    """Draws tokens from logits over one vocabulary. Belongs to the thread that made it, as its arrays do."""

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        tokens = mx.arange(vocab_size, dtype=mx.uint32)
        self._hashes = _mix(tokens + _word(GOLDEN32))
        mx.eval(self._hashes)

    def sample(self, logits: mx.array, drafts: Sequence[Draft]) -> mx.array:
        """Return the token ids drawn, uint32 of shape [rows], not evaluated yet.

        Args:
            logits: shape [rows, vocab_size], any floating dtype.
            drafts: one for each row.
        """
        logits = adjust_logits(logits.astype(mx.float32), drafts)
        greedy = [draft.sampling.temperature == 0 for draft in drafts]
        if all(greedy):
            return mx.argmax(logits, axis=-1)
        samplings = [Sampling() if plain else draft.sampling for plain, draft in zip(greedy, drafts, strict=True)]
        temperature = make_column([sampling.temperature for sampling in samplings])
        # The best token sits at zero, where float32 is finest; adding a constant changes no draw.
        scaled = (logits - mx.maximum(mx.max(logits, axis=-1, keepdims=True), LOWEST)) / temperature
        scores = mx.maximum(scaled + self._make_noise(drafts), LOWEST)
        kept = mx.where(self._filter(logits, scaled, samplings), scores, -mx.inf)
        return mx.argmax(mx.where(mx.array(greedy).reshape(-1, 1), logits, kept), axis=-1)

    def _make_noise(self, drafts: Sequence[Draft]) -> mx.array:
        """Return ``gumbel(hash32(key, token))`` for each row and token, float32 of shape [rows, vocab_size]."""
        keys = _words([draw_key(draft.sampling.seed, draft.position, draft.choice) for draft in drafts])
        bits = _mix(keys ^ self._hashes)
        # Both halves are exact in float32, so the sum is bits + 0.5 rounded once.
        high = (bits >> 8).astype(mx.float32) * 256
        low = (bits & 0xFF).astype(mx.float32) + 0.5
        v = (high + low) * 2.0**-32
        return mx.where(v >= 1, -mx.inf, -mx.log(-mx.log1p(-v)))

    def _filter(self, logits: mx.array, scaled: mx.array, samplings: Sequence[Sampling]) -> mx.array:
        """Return which tokens can be drawn, bool of shape [rows, vocab_size]."""
        keys = map_floats(logits)
        kept = keys >= self._find_border(keys, scaled, samplings)
        if any(sampling.min_p for sampling in samplings):
            least = [math.log(sampling.min_p) if sampling.min_p else -math.inf for sampling in samplings]
            kept &= scaled >= make_column(least)
        return kept

    def _find_border(self, keys: mx.array, scaled: mx.array, samplings: Sequence[Sampling]) -> mx.array:
        """Return the key of the least logit that top_k and top_p keep, uint32 of shape [rows, 1]."""
        border = mx.full((len(samplings), 1), LEAST_FINITE, dtype=mx.uint32)
        counts = [min(sampling.top_k, self._vocab_size) or self._vocab_size for sampling in samplings]
        if any(count < self._vocab_size for count in counts):
            wanted = _words(counts)
            found = _bisect(lambda key: mx.sum(keys >= key, axis=-1, keepdims=True) >= wanted)
            border = mx.maximum(border, found)
        shares = [sampling.top_p for sampling in samplings]
        if any(share < 1 for share in shares):
            weights = mx.where(keys >= border, mx.exp(scaled) * UNIT, 0).astype(mx.uint64)
            nucleus = _find_nucleus(keys, weights, make_column(shares))
            border = mx.where(make_column(shares) < 1, mx.maximum(border, nucleus), border)
        return border


def _find_nucleus(keys: mx.array, weights: mx.array, shares: mx.array) -> mx.array:
    """Return the largest key for which the weights from there up sum to at least their share of the total."""
    total = mx.sum(weights, axis=-1, keepdims=True)
    goal = mx.ceil(total.astype(mx.float32) * shares).astype(mx.uint64)
    goal = mx.clip(goal, mx.array(1, dtype=mx.uint64), total)
    nothing = mx.array(0, dtype=mx.uint64)
    return _bisect(lambda key: mx.sum(mx.where(keys >= key, weights, nothing), axis=-1, keepdims=True) >= goal)


def _bisect(holds: Callable[[mx.array], mx.array]) -> mx.array:
    """Return the largest key for which ``holds``, which is true up to some key and false above; a bit at a time."""
    key = _word(0)
    for bit in range(31, -1, -1):
        higher = key | _word(1 << bit)
        key = mx.where(holds(higher), higher, key)
    return key


def _mix(bits: mx.array) -> mx.array:
    """Compute ``mix32`` on each element of a uint32 array; products wrap."""
    bits = (bits ^ (bits >> 16)) * _word(0x7FEB352D)
    bits = (bits ^ (bits >> 15)) * _word(0x846CA68B)
    return bits ^ (bits >> 16)


def _word(value: int) -> mx.array:
    return mx.array(value, dtype=mx.uint32)


def _words(values: Sequence[int]) -> mx.array:
    return mx.array(list(values), dtype=mx.uint32).reshape(-1, 1)

"""The draw of `parallax_core.api.draw` for many rows, in MLX arrays, without sorting the vocabulary."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from parallax_backend_mlx.adjust import adjust_logits, make_column
from parallax_backend_mlx.filters import Candidates, find_border, keep_probable
from parallax_backend_mlx.float_order import map_floats
from parallax_backend_mlx.runtime import mx
from parallax_core.api import GOLDEN32, Draft, Sampling, draw_key

LOWEST = -3.4e38
"""Below every score, and above minus infinity."""
BEST = 1024
"""If filters keep at most this many tokens, noise is computed only for these."""

ONE = Sampling(top_k=1)
"""Keeps only the best token, at a temperature other than 0, which cannot be divided by."""


class Sampler:
    """Draws tokens from logits over one vocabulary. Belongs to the thread that made it, as its arrays do."""

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        tokens = mx.arange(vocab_size, dtype=mx.uint32)
        self._hashes = _mix(tokens + _word(GOLDEN32))
        mx.eval(self._hashes)

    def sample(self, logits: mx.array, drafts: Sequence[Draft]) -> mx.array:
        """Return the drawn token ids, uint32 of shape [rows].

        Args:
            logits: shape [rows, vocab_size], any floating dtype.
            drafts: one for each row.
        """
        logits = adjust_logits(logits.astype(mx.float32), drafts)
        greedy = [draft.sampling.temperature == 0 for draft in drafts]
        plain = mx.argmax(logits, axis=-1)
        if all(greedy):
            return plain
        # A greedy row draws among its best token only, for any noise.
        samplings = [ONE if is_greedy else draft.sampling for is_greedy, draft in zip(greedy, drafts, strict=True)]
        temperature = make_column([sampling.temperature for sampling in samplings])
        # The best token is moved to zero, where float32 is most precise; adding a constant changes no draw.
        scaled = (logits - mx.maximum(mx.max(logits, axis=-1, keepdims=True), LOWEST)) / temperature
        whole = Candidates(map_floats(logits), scaled)
        few = [row for row, sampling in enumerate(samplings) if self._may_keep_few(sampling)]
        rest = set(range(len(samplings))).difference(few)
        drawn = mx.zeros(len(samplings), dtype=mx.uint32)
        if few:
            drawn[mx.array(few)], is_enough = self._draw_best(whole.take(few), *_take(few, samplings, drafts))
            rest.update(
                row for row, enough in zip(few, cast("list[bool]", is_enough.tolist()), strict=True) if not enough
            )
        if wide := sorted(rest):
            drawn[mx.array(wide)] = self._draw_whole(whole.take(wide), *_take(wide, samplings, drafts))
        return mx.where(mx.array(greedy), plain, drawn)

    def _may_keep_few(self, sampling: Sampling) -> bool:
        """Return whether filters may keep `BEST` tokens at most; what top_p keeps depends on all that top_k keeps."""
        has_filter = sampling.top_k or sampling.top_p < 1 or sampling.min_p
        return bool(has_filter) and sampling.top_k <= BEST < self._vocab_size

    def _draw_whole(self, whole: Candidates, samplings: Sequence[Sampling], drafts: Sequence[Draft]) -> mx.array:
        """Draw among all tokens."""
        return self._draw(whole, find_border(whole, whole, samplings), samplings, self._make_noise(drafts))

    def _draw_best(
        self, whole: Candidates, samplings: Sequence[Sampling], drafts: Sequence[Draft]
    ) -> tuple[mx.array, mx.array]:
        """Draw among the `BEST` tokens of each row; return, too, in which rows filters keep no others."""
        # Ordered by id, so that the lowest id wins among equal scores here too.
        ids = mx.sort(mx.argpartition(whole.keys, kth=-BEST, axis=-1)[:, -BEST:], axis=-1)
        best = whole.pick(ids)
        border = find_border(best, whole, samplings)
        is_enough = border[:, 0] > mx.min(best.keys, axis=-1)
        probable = keep_probable(best.scaled, samplings)
        if probable is not None:
            is_enough |= ~mx.all(probable, axis=-1)  # a token that is not among the best is less probable than all
        place = self._draw(best, border, samplings, self._make_noise(drafts, ids))
        return mx.take_along_axis(ids, place[:, None], axis=-1)[:, 0], is_enough

    def _draw(self, field: Candidates, border: mx.array, samplings: Sequence[Sampling], noise: mx.array) -> mx.array:
        """Return the index in ``field`` of the best score that filters keep, uint32 of shape [rows]."""
        scores = mx.maximum(field.scaled + noise, LOWEST)
        kept = field.keys >= border
        probable = keep_probable(field.scaled, samplings)
        if probable is not None:
            kept &= probable
        return mx.argmax(mx.where(kept, scores, -mx.inf), axis=-1)

    def _make_noise(self, drafts: Sequence[Draft], ids: mx.array | None = None) -> mx.array:
        """Return ``gumbel(hash32(key, token))`` for each row and token, float32 of shape [rows, tokens].

        Args:
            drafts: one for each row.
            ids: the tokens of each row, shape [rows, tokens]; None: all.
        """
        keys = [draw_key(draft.sampling.seed, draft.position, draft.choice) for draft in drafts]
        hashes = self._hashes if ids is None else self._hashes[ids]
        bits = _mix(mx.array(keys, dtype=mx.uint32).reshape(-1, 1) ^ hashes)
        # Both halves are exact in float32, so the sum is bits + 0.5 rounded once.
        high = (bits >> 8).astype(mx.float32) * 256
        low = (bits & 0xFF).astype(mx.float32) + 0.5
        v = (high + low) * 2.0**-32
        return mx.where(v >= 1, -mx.inf, -mx.log(-mx.log1p(-v)))


def _take(
    rows: Sequence[int], samplings: Sequence[Sampling], drafts: Sequence[Draft]
) -> tuple[list[Sampling], list[Draft]]:
    return [samplings[row] for row in rows], [drafts[row] for row in rows]


def _mix(bits: mx.array) -> mx.array:
    """Compute ``mix32`` on each element of a uint32 array; products wrap."""
    bits = (bits ^ (bits >> 16)) * _word(0x7FEB352D)
    bits = (bits ^ (bits >> 15)) * _word(0x846CA68B)
    return bits ^ (bits >> 16)


def _word(value: int) -> mx.array:
    return mx.array(value, dtype=mx.uint32)

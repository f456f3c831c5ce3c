"""Applies penalties, bias and bans to many rows at once, in MLX arrays: `parallax_core.api.adjust`.

No state is kept between steps: one scatter counts the tokens of a row's history, which costs little compared to the
step, and a failed step needs no undo.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence

from parallax_backend_mlx.runtime import mx
from parallax_core.api import Draft


def adjust_logits(logits: mx.array, drafts: Sequence[Draft]) -> mx.array:
    """Return ``logits`` after penalties, bias and bans; rows without any of them cost nothing.

    Args:
        logits: float32 of shape [rows, vocab_size].
        drafts: one for each row; the token ids of their histories lie in ``range(vocab_size)``.
    """
    logits = _repeat(logits, drafts)
    logits = _discourage(logits, drafts)
    return _bias(logits, drafts)


def _repeat(logits: mx.array, drafts: Sequence[Draft]) -> mx.array:
    """Apply the repetition penalty."""
    rows = [row for row, draft in enumerate(drafts) if draft.sampling.repetition_penalty != 1]
    if not rows:
        return logits
    size = logits.shape[-1]
    seen = _count([drafts[row].prompt for row in rows], size) + _count([drafts[row].output for row in rows], size)
    penalty = make_column([drafts[row].sampling.repetition_penalty for row in rows])
    part = logits[mx.array(rows)]
    weakened = mx.where(part > 0, part / penalty, part * penalty)
    return _put(logits, rows, mx.where(seen > 0, weakened, part))


def _discourage(logits: mx.array, drafts: Sequence[Draft]) -> mx.array:
    """Apply the frequency and the presence penalty."""
    rows = [
        row
        for row, draft in enumerate(drafts)
        if draft.output and (draft.sampling.frequency_penalty or draft.sampling.presence_penalty)
    ]
    if not rows:
        return logits
    counts = _count([drafts[row].output for row in rows], logits.shape[-1])
    frequency = make_column([drafts[row].sampling.frequency_penalty for row in rows])
    presence = make_column([drafts[row].sampling.presence_penalty for row in rows])
    part = logits[mx.array(rows)]
    return _put(logits, rows, mx.where(counts > 0, part - (frequency * counts + presence), part))


def _bias(logits: mx.array, drafts: Sequence[Draft]) -> mx.array:
    """Add the bias, and forbid the tokens that may not end the text yet."""
    size = logits.shape[-1]
    changes = [
        (row, token, change)
        for row, draft in enumerate(drafts)
        for token, change in _list_changes(draft)
        if 0 <= token < size
    ]
    if not changes:
        return logits
    rows, tokens, values = zip(*changes, strict=True)
    return logits.at[mx.array(rows), mx.array(tokens)].add(mx.array(values))


def _list_changes(draft: Draft) -> list[tuple[int, float]]:
    sampling = draft.sampling
    if not (sampling.logit_bias or sampling.min_tokens):
        return []
    is_early = len(draft.output) < sampling.min_tokens
    return [*sampling.logit_bias, *((token, -math.inf) for token in sampling.stop_ids if is_early)]


def _count(histories: Sequence[Sequence[int]], size: int) -> mx.array:
    """Return how often each history holds each token, float32 of shape [histories, size]."""
    tokens, rows = array("I"), array("I")
    for row, history in enumerate(histories):
        tokens.extend(history)
        rows.extend(array("I", [row]) * len(history))
    counts = mx.zeros((len(histories), size))
    return counts.at[_upload(rows), _upload(tokens)].add(1.0) if tokens else counts


def _upload(words: array[int]) -> mx.array:
    """Return ``words`` as uint32, copied from their buffer and not one by one."""
    return mx.array(words)  # type: ignore[arg-type]  # MLX takes buffers, which its type hints omit


def _put(logits: mx.array, rows: Sequence[int], part: mx.array) -> mx.array:
    if len(rows) == len(logits):
        return part
    changed = logits[...]
    changed[mx.array(list(rows))] = part
    return changed


def make_column(values: Sequence[float]) -> mx.array:
    """Return ``values`` as float32 of shape [rows, 1]."""
    return mx.array(list(values), dtype=mx.float32).reshape(-1, 1)

"""Computes log-probabilities, and finds the most probable tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from parallax_backend_mlx.float_order import map_floats
from parallax_backend_mlx.runtime import mx
from parallax_stage_tools.ranking import Inquiry, Ranking

SLICE = 64
"""Rows ranked at a time: each takes more than 8 bytes per token of the vocabulary."""


def rank_tokens(logits: mx.array, inquiries: Sequence[Inquiry]) -> list[Ranking]:
    """Return the log-softmax of raw ``logits``, of shape [rows, vocab_size], for each inquiry."""
    slices = [inquiries[start : start + SLICE] for start in range(0, len(inquiries), SLICE)]
    return [ranking for part in slices for ranking in _rank_slice(logits, part)]


def _rank_slice(logits: mx.array, inquiries: Sequence[Inquiry]) -> list[Ranking]:
    rows = logits[mx.array([inquiry.row for inquiry in inquiries])].astype(mx.float32)
    total = mx.logsumexp(rows, axis=-1, keepdims=True)
    width = max(len(inquiry.tokens) for inquiry in inquiries)
    padded = [[*inquiry.tokens, *[0] * (width - len(inquiry.tokens))] for inquiry in inquiries]
    asked = mx.take_along_axis(rows, mx.array(padded, dtype=mx.uint32), axis=-1) - total
    best = _find_best(rows, min(max(inquiry.top for inquiry in inquiries), rows.shape[-1]))
    values = mx.take_along_axis(rows, best, axis=-1) - total
    mx.eval(asked, best, values)
    lists: list[Any] = [asked.tolist(), best.tolist(), values.tolist()]
    return [
        Ranking(tuple(scores[: len(inquiry.tokens)]), tuple(zip(tokens, logprobs, strict=True))[: max(0, inquiry.top)])
        for inquiry, scores, tokens, logprobs in zip(inquiries, *lists, strict=True)
    ]


def _find_best(logits: mx.array, num: int) -> mx.array:
    """Return the ids of the ``num`` largest logits of each row in order, uint32 of shape [rows, num].

    A logit and its id are packed into one integer, so that no two are equal, and a partition, cheaper than a full sort,
    breaks ties by id.
    """
    size = logits.shape[-1]
    if num < 1:
        return mx.zeros((len(logits), 0), dtype=mx.uint32)
    rising = mx.arange(size - 1, -1, -1, dtype=mx.uint32).astype(mx.uint64)
    keys = (map_floats(logits).astype(mx.uint64) << 32) | rising
    best = mx.sort(mx.topk(keys, num, axis=-1), axis=-1)[:, ::-1]
    return size - 1 - (best & mx.array(0xFFFFFFFF, dtype=mx.uint64)).astype(mx.uint32)

"""Computes log-probabilities, and finds the most probable tokens."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from parallax_sampling_torch.float_order import map_floats
from parallax_stage_tools.ranking import Inquiry, Ranking

SLICE = 64
"""Rows ranked at a time: each takes more than 8 bytes per token of the vocabulary."""


def rank_tokens(logits: torch.Tensor, inquiries: Sequence[Inquiry]) -> list[Ranking]:
    """Return the log-softmax of raw ``logits``, of shape [rows, vocab size], for each inquiry."""
    slices = [inquiries[start : start + SLICE] for start in range(0, len(inquiries), SLICE)]
    return [ranking for part in slices for ranking in _rank_slice(logits, part)]


def _rank_slice(logits: torch.Tensor, inquiries: Sequence[Inquiry]) -> list[Ranking]:
    rows = logits[[inquiry.row for inquiry in inquiries]]
    total = rows.logsumexp(-1, keepdim=True)
    width = max(len(inquiry.tokens) for inquiry in inquiries)
    padded = [[*inquiry.tokens, *[0] * (width - len(inquiry.tokens))] for inquiry in inquiries]
    asked = rows.gather(-1, torch.tensor(padded, device=rows.device)) - total
    best = _find_best(rows, min(max(0, *(inquiry.top for inquiry in inquiries)), rows.shape[-1]))
    values = rows.gather(-1, best) - total
    return [
        Ranking(tuple(scores[: len(inquiry.tokens)]), tuple(zip(tokens, logprobs, strict=True))[: max(0, inquiry.top)])
        for inquiry, scores, tokens, logprobs in zip(
            inquiries, asked.tolist(), best.tolist(), values.tolist(), strict=True
        )
    ]


def _find_best(logits: torch.Tensor, num: int) -> torch.Tensor:
    """Return the ids of the ``num`` largest logits of each row in order, int64 of shape [rows, num].

    A logit and its id are packed into one integer, so that no two are equal, and equal logits are ordered by id.
    """
    size = logits.shape[-1]
    falling = torch.arange(size - 1, -1, -1, dtype=torch.int64, device=logits.device)
    keys = (map_floats(logits).to(torch.int64) << 32) | falling
    return size - 1 - (keys.topk(num, sorted=True).values & 0xFFFFFFFF)

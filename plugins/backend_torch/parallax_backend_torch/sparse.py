"""Attention of each token to a few chosen tokens, in plain PyTorch: what an index chose, row by row."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch.nn import functional

from parallax_backend_torch.kernels.attention import Pool, Rule
from parallax_backend_torch.kernels.paging import find_slots
from parallax_backend_torch.step import SlotMapping

MOST_NUMBERS = 2**24
"""Numbers of an intermediate result; more tokens are worked on in parts."""


@dataclass(frozen=True, eq=False, slots=True)
class SeenRow:
    """A row of a step, and all tokens that one of them may see."""

    part: slice
    """Its tokens among those of the step."""
    positions: torch.Tensor
    """The positions of its tokens, int64 of shape [tokens]."""
    slots: torch.Tensor
    """The slots of its sequence from the position ``first`` on, int64 of shape [length]."""
    first: int = 0
    """The first position that a token sees: 0 unless the pool is of windows."""


@dataclass(frozen=True, eq=False, slots=True)
class Choice:
    """The tokens that those of a row attend to."""

    part: slice
    """The row's tokens among those of the step."""
    slots: torch.Tensor
    """int64 of shape [tokens, heads of keys, chosen], or with one head for all."""
    is_seen: torch.Tensor
    """Whether a chosen token counts: bool, of the same shape."""


def list_rows(places: SlotMapping, device: torch.device) -> Iterator[SeenRow]:
    """Yield the rows of a step that have tokens."""
    rows, done = places.rows, 0
    for row, (start, count) in enumerate(zip(rows.starts.tolist(), rows.lengths.tolist(), strict=True)):
        if count:
            positions = torch.arange(start, start + count, device=device)
            first = max(0, start - places.window + 1) if places.window else 0
            slots = find_slots(rows, row, first, start + count).to(device)
            yield SeenRow(slice(done, done + count), positions, slots, first)
        done += count


def find_longest(places: SlotMapping) -> int:
    """Return the length of the longest sequence of a step, with its new tokens."""
    return int((places.rows.starts + places.rows.lengths).max())


def split_tokens(count: int, numbers_each: int) -> Iterator[slice]:
    """Yield parts of ``count`` tokens, as many at once as ``numbers_each`` numbers per token allow."""
    size = max(1, MOST_NUMBERS // max(1, numbers_each))
    return (slice(start, min(start + size, count)) for start in range(0, count, size))


def score_keys(
    query: torch.Tensor, shares: torch.Tensor | None, keys: torch.Tensor
) -> Iterator[tuple[slice, torch.Tensor]]:
    """Yield parts of the tokens of a row, each with its scores of all keys, float32 of shape [tokens, keys].

    A score is the sum over the heads of what is positive of query times key (DeepSeek-V3.2-Exp, section 2.1).

    Args:
        query: [tokens, heads, width].
        shares: the factor of each head, [tokens, heads]; None: 1.
        keys: one head for all, [keys, width].
    """
    query, keys = query.float(), keys.float()
    for part in split_tokens(len(query), query.shape[1] * len(keys)):
        scores = functional.relu(query[part] @ keys.T * query.shape[2] ** -0.5)
        yield part, scores.sum(1) if shares is None else (shares[part, None] @ scores)[:, 0]


def attend_chosen(query: torch.Tensor, pool: Pool, choices: Sequence[Choice], rule: Rule) -> torch.Tensor:
    """Return the attention of each query to the tokens chosen for it.

    Args:
        query: [tokens, heads, width].
        pool: keys and values of a layer, not in int8.
        choices: those of all rows.
        rule: the factor of the scores, and the sinks.
    """
    out = torch.empty_like(query)
    for choice in choices:
        rows, numbers = query[choice.part], choice.slots[0].numel() * query.shape[2]
        found = [_attend_some(rows[part], pool, choice, part, rule) for part in split_tokens(len(rows), numbers)]
        out[choice.part] = torch.cat(found).to(query.dtype)
    return out


def _attend_some(query: torch.Tensor, pool: Pool, choice: Choice, part: slice, rule: Rule) -> torch.Tensor:
    slots, is_seen = choice.slots[part], choice.is_seen[part]
    heads = torch.arange(pool.keys.shape[1], device=query.device)[:, None]
    keys, values = (each[slots, heads].float() for each in (pool.keys, pool.values))
    grouped = query.float().unflatten(1, (pool.keys.shape[1], -1))
    scores = (grouped @ keys.transpose(-1, -2) * rule.scale).masked_fill(~is_seen[:, :, None], -math.inf)
    return (weigh(scores, rule.sinks) @ values).flatten(1, 2)


def weigh(scores: torch.Tensor, sinks: torch.Tensor | None) -> torch.Tensor:
    """Return the softmax of scores, [tokens, heads of keys, heads that share them, chosen], with the heads' sinks."""
    if sinks is None:
        return scores.softmax(-1)
    extra = sinks.view(1, *scores.shape[1:3], 1).expand(len(scores), -1, -1, -1)
    return torch.cat([scores, extra], dim=-1).softmax(-1)[..., :-1]

"""Attention to a window of tokens and to compressed ones (DeepSeek-V4, sections 2.3.1 and 2.3.2).

Every ``rate`` tokens become one entry, a mix of what was computed from each. Raw numbers of the last tokens stay in the
pool of the window, and entries in a pool of latents, at the slot of the last token of theirs. So nothing is overwritten
that a fork could still need, and a sequence can be truncated as far as its window.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from parallax_backend_torch.arithmetic import Norm
from parallax_backend_torch.kernels.linear import Packed
from parallax_backend_torch.rope import Rope
from parallax_backend_torch.sparse import SeenRow, score_keys, split_tokens, weigh
from parallax_backend_torch.step import Step
from parallax_backend_torch.weights import Weights

SLOTS = 16
"""The size of pages, which the number of tokens that share a slot divides."""


@dataclass(frozen=True, slots=True)
class CompressSizes:
    """The sizes of compressed tokens."""

    rate: int
    """The number of tokens that become an entry."""
    width: int
    """The width of an entry."""
    overlaps: bool = False
    """Whether an entry is a mix of the tokens before its own as well: then each has two rows of numbers."""

    @property
    def stride(self) -> int:
        """The number of tokens that share a slot; see `CacheSpec.stride`."""
        return math.gcd(self.rate, SLOTS)

    @property
    def seen(self) -> int:
        """The number of tokens that an entry is made of."""
        return self.rate * (1 + self.overlaps)

    @property
    def raw(self) -> int:
        """The numbers that are kept of each token until its entries are made."""
        return 2 * self.width * (1 + self.overlaps)


class Compressor:
    """Makes the entries of one layer.

    Args:
        weights: with ``kv_proj``, ``gate_proj``, ``kv_norm`` and ``position_bias``.
        sizes: the sizes of entries.
        rope: the rope, which turns an entry as the first of its tokens.
        eps: the eps of the norm.
    """

    def __init__(self, weights: Weights, sizes: CompressSizes, rope: Rope, eps: float) -> None:
        self.sizes, self._rope = sizes, rope
        self._into: Packed = weights.make_linear("kv_proj", "gate_proj")
        self._bias = weights.read_vector("position_bias")
        self._norm = Norm(weights.read_vector("kv_norm.weight"), eps)

    def store(self, x: torch.Tensor, positions: torch.Tensor, kept: torch.Tensor, slots: torch.Tensor) -> None:
        """Write the raw numbers of the new tokens, [tokens, raw], to their slots."""
        mixed = self._into.apply(x)
        mixed[:, mixed.shape[1] // 2 :] += self._bias[positions % self.sizes.rate].to(mixed.dtype)
        kept[slots] = mixed.to(kept.dtype)

    def compress(self, row: SeenRow, far: SeenRow, raw: torch.Tensor, kept: torch.Tensor) -> None:
        """Write the entries that the new tokens of a row complete.

        Args:
            row: the row in the pool of the window.
            far: the row in the pool of the entries.
            raw: the raw numbers by slot.
            kept: the entries by slot.
        """
        sizes, start = self.sizes, int(row.positions[0])
        first, stop = start // sizes.rate, (start + len(row.positions)) // sizes.rate
        if first == stop:
            return
        low = max(0, (first - sizes.overlaps) * sizes.rate)
        slots = row.slots[low - row.first : stop * sizes.rate - row.first]
        values, gates = raw[slots].float().unflatten(0, (-1, sizes.rate)).chunk(2, dim=-1)
        if sizes.overlaps:
            values, gates = self._overlap(values, 0.0, first), self._overlap(gates, -math.inf, first)
        entries = self._norm((values * gates.softmax(1)).sum(1))
        begins = torch.arange(first, stop, device=entries.device) * sizes.rate
        rotate_pairs(entries[:, None], self._rope.find_angles(begins))
        kept[self.find_slots(far, stop)[first:]] = entries.to(kept.dtype)

    def find_slots(self, far: SeenRow, count: int) -> torch.Tensor:
        """Return the slots of the first ``count`` entries of a row, from those of its tokens."""
        rate = self.sizes.rate
        return far.slots[rate - 1 : count * rate : rate] // self.sizes.stride

    def _overlap(self, numbers: torch.Tensor, nothing: float, first: int) -> torch.Tensor:
        """Return the first half of each row of the tokens before, and the second half of those of the entry itself.

        Args:
            numbers: [entries, rate, 2 * width], one more than are made unless ``first`` is 0.
            nothing: what the tokens before the first entry of a sequence have.
            first: the number of the first entry.
        """
        before, own = numbers.chunk(2, dim=-1)
        if not first:
            before = torch.cat([torch.full_like(before[:1], nothing), before])
            own = torch.cat([own[:1], own])
        return torch.cat([before[:-1], own[1:]], dim=1)


def rotate_pairs(x: torch.Tensor, angles: tuple[torch.Tensor, torch.Tensor], sign: int = 1) -> None:
    """Rotate the last numbers of each head in place, the two of a pair side by side: [tokens, heads, width].

    Args:
        x: the heads.
        angles: the cosines and sines of each token, [tokens, pairs].
        sign: -1: turn back.
    """
    cos, sin = (each[:, None].to(x.dtype) for each in angles)
    tail = x[..., x.shape[-1] - 2 * cos.shape[-1] :].unflatten(-1, (-1, 2))
    first, second = tail.unbind(-1)
    turned = torch.stack([first * cos - second * sin * sign, second * cos + first * sin * sign], dim=-1)
    x[..., x.shape[-1] - 2 * cos.shape[-1] :] = turned.flatten(-2)


class EntryIndex:
    """The index of the entries of one layer: the scores of entries of its own, smaller ones.

    Args:
        weights: with ``q_b_proj``, ``weights_proj``, and those of its compressor.
        compressor: makes its entries.
        num_heads: of its queries.
        num_chosen: the number of entries that a token attends to.
        rope: the rope of its queries.
    """

    def __init__(self, weights: Weights, compressor: Compressor, num_heads: int, num_chosen: int, rope: Rope) -> None:
        self.compressor, self.num_chosen, self._num_heads, self._rope = compressor, num_chosen, num_heads, rope
        self._query = weights.make_linear("q_b_proj")
        self._shares = weights.make_linear("weights_proj", purpose="router")

    def prepare(self, x: torch.Tensor, narrow: torch.Tensor, step: Step) -> tuple[torch.Tensor, torch.Tensor]:
        """Return queries, [tokens, heads, width], and the share of each head, [tokens, heads], of all tokens."""
        query = self._query.apply(narrow).unflatten(1, (self._num_heads, -1))
        rotate_pairs(query, step.find_angles(self._rope))
        return query.float(), self._shares.apply(x).float() * self._num_heads**-0.5

    def choose(
        self, query: torch.Tensor, shares: torch.Tensor, keys: torch.Tensor, is_seen: torch.Tensor
    ) -> torch.Tensor:
        """Return the best entries for each token of a row, int64 of shape [tokens, chosen].

        Args:
            query: [tokens, heads, width].
            shares: [tokens, heads].
            keys: [entries, width], more than are chosen.
            is_seen: whether a token may see an entry, [tokens, entries].
        """
        found = []
        for part, scores in score_keys(query, shares, keys):
            found.append(scores.masked_fill(~is_seen[part], -math.inf).topk(self.num_chosen, dim=-1).indices)
        return torch.cat(found)


@dataclass(frozen=True, eq=False, slots=True)
class Seen:
    """Keys that are the values too, and which tokens see them."""

    pool: torch.Tensor
    """By slot, [slots, 1, width]."""
    slots: torch.Tensor
    """int64 of shape [keys] for all tokens, or [tokens, keys] with those of each."""
    is_seen: torch.Tensor
    """Whether a token sees a key, bool of shape [tokens, keys]."""

    def read(self, part: slice) -> torch.Tensor:
        """Return the keys of some tokens, float32 of shape [keys, width] or [tokens, keys, width]."""
        return self.pool[self.slots if self.slots.dim() == 1 else self.slots[part], 0].float()


def attend_both(query: torch.Tensor, near: Seen, far: Seen, scale: float, sinks: torch.Tensor) -> torch.Tensor:
    """Return the attention of each query to a window and to entries, float32 of shape [tokens, heads, width].

    Args:
        query: [tokens, heads, width].
        near: the tokens of the window.
        far: the entries.
        scale: the factor of the scores.
        sinks: one of each head.
    """
    out, count = [], near.slots.shape[-1]
    width = query.shape[2] if far.slots.dim() > 1 else 0
    for part in split_tokens(len(query), far.slots.shape[-1] * max(width, query.shape[1]) + count * query.shape[1]):
        heads, keys, entries = query[part].float(), near.read(part), far.read(part)
        scores = torch.cat([heads @ keys.transpose(-1, -2), heads @ entries.transpose(-1, -2)], dim=-1) * scale
        is_seen = torch.cat([near.is_seen[part], far.is_seen[part]], dim=-1)[:, None]
        shares = weigh(scores.masked_fill(~is_seen, -math.inf)[:, None], sinks)[:, 0]
        out.append(shares[..., :count] @ keys + shares[..., count:] @ entries)
    return torch.cat(out)


def see_window(row: SeenRow, pool: torch.Tensor, window: int) -> Seen:
    """Return the tokens of a window, of those in a pool that may keep more."""
    distance = row.positions[:, None] - torch.arange(row.first, row.first + len(row.slots), device=row.slots.device)
    return Seen(pool, row.slots, (distance >= 0) & (distance < window))

"""Rows of tables by hashes of the last few tokens (n-grams), read from the mapped files."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate, count, takewhile

import torch
from torch.nn import functional

from parallax_backend_torch.short_conv import convolve, look_back, read_kernel
from parallax_backend_torch.step import LayerCache, Slots, Step
from parallax_backend_torch.stream_gate import StreamNorm
from parallax_backend_torch.weights import MappedTable, Weights

LEAST = 1e-6
"""The least agreement of a stream with the key of an n-gram, before the root is taken."""


@dataclass(frozen=True, eq=False, slots=True)
class NgramHashes:
    """The numbers of the rows of n-grams: of as many heads of a table for each length from 2 tokens on."""

    multipliers: torch.Tensor
    """The factors of the ids of a token and of those before it, int64 of shape [longest n-gram]."""
    sizes: torch.Tensor
    """The number of rows of each head, those of shorter n-grams first: int64 of shape [heads]."""
    end: int
    """The id of the token that ends a text: no n-gram reaches back over it."""

    def find_rows(self, tokens: torch.Tensor, places: Slots, kept: torch.Tensor) -> torch.Tensor:
        """Return the row of each head for each token, int64 of shape [tokens, heads], and keep the last ids.

        Args:
            tokens: the ids of the step's tokens, which float32 holds exactly below 2**24.
            places: the rows of the step.
            kept: the last ids of each slot, [slots, longest n-gram - 1].
        """
        ids, at = look_back(tokens.to(kept.dtype), places, kept, float(self.end))
        mixed, before, found = tokens * self.multipliers[0], torch.full_like(tokens, self.end + 1), []
        for back in range(1, len(self.multipliers)):
            before = torch.where(before == self.end, self.end, ids[at - back].long())
            mixed = mixed ^ before * self.multipliers[back]
            found.append(mixed)
        each = len(self.sizes) // len(found)
        starts = self.sizes.cumsum(0) - self.sizes
        return torch.stack(found, dim=1).repeat_interleave(each, dim=1) % self.sizes + starts


class SplitTable:
    """A table that `model.Shape.mapped` names, in one tensor or in parts.

    Args:
        weights: with ``NAME.weight``, or ``NAME.shard_0.weight``, ``NAME.shard_1.weight`` and so on.
        name: its name.
    """

    def __init__(self, weights: Weights, name: str) -> None:
        shards = (f"{name}.shard_{number}" for number in count())
        names = list(takewhile(lambda each: weights.has(f"{each}.weight"), shards)) or [name]
        self._parts: list[MappedTable] = [weights.map_table(each) for each in names]
        self._ends = torch.tensor(list(accumulate(len(part.view) for part in self._parts)))

    def gather(self, rows: torch.Tensor) -> torch.Tensor:
        """Return rows by their numbers, of any shape [...]: [..., width], in the dtype of activations."""
        numbers = rows.flatten().cpu()
        owners = torch.searchsorted(self._ends, numbers, right=True)
        order, (used, counts) = owners.argsort(stable=True), owners.unique(return_counts=True)
        found = []
        for which, owner in zip(order.split(counts.tolist()), used.tolist(), strict=True):
            part = self._parts[owner]
            found.append(part.gather(numbers[which] - self._ends[owner] + len(part.view)))
        return torch.cat(found)[order.argsort().to(rows.device)].unflatten(0, rows.shape)


class NgramPart:
    """Adds to the streams of a token what is looked up by the n-gram that ends with it; see `hyper.StreamPart`.

    Args:
        weights: with ``ple_embedding``, ``key_proj``, ``value_proj``, their norms and ``conv1d``.
        hashes: find the rows.
        look: the name of the table within ``ple_embedding``, the number of streams, and the eps of the norms.
    """

    def __init__(self, weights: Weights, hashes: NgramHashes, look: tuple[str, int, float]) -> None:
        table, num, eps = look
        self._hashes, self._table = hashes, SplitTable(weights.within("ple_embedding"), table)
        self._key, self._value = weights.make_linear("key_proj"), weights.make_linear("value_proj")
        self._norms = [StreamNorm(weights, f"norm_{name}", num, eps) for name in ("key", "query", "conv")]
        self._kernel = read_kernel(weights.within("conv1d"), len(hashes.multipliers))

    def __call__(self, streams: torch.Tensor, step: Step, cache: LayerCache) -> torch.Tensor:
        """Return the streams with what is added to them, both [tokens, streams, width]."""
        *_, inputs, ids = cache.kept
        assert isinstance(cache.places, Slots)
        key_norm, query_norm, conv_norm = self._norms
        rows = self._table.gather(self._hashes.find_rows(step.tokens, cache.places, ids)).flatten(1)
        keys = key_norm(self._key.apply(rows).view_as(streams))
        scores = (keys * query_norm(streams)).sum(-1, keepdim=True) * streams.shape[2] ** -0.5
        gates = (scores.abs().clamp(min=LEAST).sqrt() * scores.sign()).sigmoid()
        values = gates * self._value.apply(rows).float()[:, None]
        mixed = convolve(conv_norm(values).flatten(1), self._kernel, cache.places, inputs)
        return streams + (values + functional.silu(mixed).view_as(values)).to(streams.dtype)

"""Rows of tables by hashes of the last few tokens (n-grams), read from the mapped files."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate, count, takewhile

import torch

from parallax_backend_torch.short_conv import look_back
from parallax_backend_torch.step import Slots
from parallax_backend_torch.weights import MappedTable, Weights


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

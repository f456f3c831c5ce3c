"""Attention whose tokens attend to a few chosen ones: of an index, of blocks, or of a chunk."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from parallax_backend_torch.heads import Attention, Heads, Look
from parallax_backend_torch.sparse import Choice
from parallax_backend_torch.step import LayerCache, SlotMapping, Step
from parallax_backend_torch.weights import Weights

Choose = Callable[[torch.Tensor, Step, LayerCache], Sequence[Choice] | None]
"""Returns the tokens that those of a step attend to, from the input of the layer, [tokens, width], and its cache, whose
keys in an index it writes; None: all are chosen."""


class ChosenAttention(Attention):
    """See `Attention`.

    Args:
        weights: as in `Attention`.
        heads: the numbers of heads.
        look: the other options.
        choose: chooses the tokens; see `Choose`.
    """

    is_steady = False

    def __init__(self, weights: Weights, heads: Heads, look: Look, choose: Choose) -> None:
        super().__init__(weights, heads, look)
        self.is_plain, self._choose = False, choose

    def __call__(self, x: torch.Tensor, residual: torch.Tensor | None, step: Step, cache: LayerCache) -> torch.Tensor:
        """Return the output plus ``residual``: [tokens, width of the model]."""
        assert isinstance(cache.places, SlotMapping)
        choices = self._choose(x, step, cache)
        keys, values, *_ = cache.kept
        found = self.look(self.into.apply(x), step, LayerCache([keys, values], cache.places), choices)
        return self.back.apply(found, residual)

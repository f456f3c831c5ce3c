"""The MLP of a layer without experts."""

from __future__ import annotations

from typing import Protocol

import torch

from parallax_backend_torch.kernels.linear import Gate
from parallax_backend_torch.step import LayerCache, Step
from parallax_backend_torch.weights import Weights


class Mixer(Protocol):
    """The part of a layer that works on each token separately: an MLP or experts."""

    def __call__(self, x: torch.Tensor, residual: torch.Tensor | None) -> torch.Tensor:
        """Return the output plus ``residual``: [tokens, width]."""


class Looker(Protocol):
    """The part of a layer that combines tokens: attention or a delta net."""

    def __call__(self, x: torch.Tensor, residual: torch.Tensor | None, step: Step, cache: LayerCache) -> torch.Tensor:
        """Return the output plus ``residual``: [tokens, width]."""


class GatedMlp:
    """Gate, up and down (arXiv 2002.05202).

    Args:
        weights: with ``gate_proj``, ``up_proj`` and ``down_proj``.
        gate: the activation function of the gate.
    """

    is_steady = True
    """See `model.find_obstacle`."""

    def __init__(self, weights: Weights, gate: Gate = "silu") -> None:
        self.into = weights.make_linear("gate_proj", "up_proj")
        self.back = weights.make_linear("down_proj")
        self.gate: Gate = gate

    def __call__(self, x: torch.Tensor, residual: torch.Tensor | None) -> torch.Tensor:
        """Return the output plus ``residual``: [tokens, width]."""
        return self.back.apply(self.into.apply_gated(x, self.gate), residual)


class SquaredMlp:
    """Up and down, with squares of what is positive between them (arXiv 2109.08668).

    Args:
        weights: with ``up_proj`` and ``down_proj``.
    """

    is_steady = True
    """See `model.find_obstacle`."""

    def __init__(self, weights: Weights) -> None:
        self._into, self._back = weights.make_linear("up_proj"), weights.make_linear("down_proj")

    def __call__(self, x: torch.Tensor, residual: torch.Tensor | None = None) -> torch.Tensor:
        """Return the output plus ``residual``: [tokens, width]."""
        return self._back.apply(self._into.apply(x).relu().square(), residual)

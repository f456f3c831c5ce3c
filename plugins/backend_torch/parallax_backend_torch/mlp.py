"""The MLP of a layer without experts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch

from parallax_backend_torch.kernels.linear import Gate, Packed
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

    def __call__(self, x: torch.Tensor, residual: torch.Tensor | None = None) -> torch.Tensor:
        """Return the output plus ``residual``: [tokens, width]."""
        return self.back.apply(self.into.apply_gated(x, self.gate), residual)


@dataclass(frozen=True, slots=True)
class Clamp:
    """How a family limits gate and up, and multiplies them."""

    limit: float
    """The gate is clamped from above, and up from both sides; 0: neither is."""
    alpha: float = 1.0
    """The factor of the gate within its sigmoid."""
    shift: float = 0.0
    """Added to up."""
    is_late: bool = False
    """Whether the gate is clamped after its activation."""

    def multiply(self, both: torch.Tensor) -> torch.Tensor:
        """Return the gated numbers, [tokens, inner], of gates and what they gate, [tokens, 2 * inner]."""
        gate, up = both.chunk(2, dim=1)
        limit = self.limit or torch.inf
        gate = gate if self.is_late else gate.clamp(max=limit)
        gated = gate * (gate * self.alpha).sigmoid()
        return (gated.clamp(max=limit) if self.is_late else gated) * (up.clamp(-limit, limit) + self.shift)


@dataclass(frozen=True, eq=False, slots=True)
class ClampedMlp:
    """Gate, up and down, with limits."""

    into: Packed
    """The rows of gate, then those of up."""
    back: Packed
    clamp: Clamp

    def __call__(self, x: torch.Tensor, residual: torch.Tensor | None = None) -> torch.Tensor:
        """Return the output plus ``residual``: [tokens, width]."""
        return self.back.apply(self.clamp.multiply(self.into.apply(x)), residual)


def build_clamped(weights: Weights, clamp: Clamp) -> ClampedMlp:
    """Return an MLP with limits, of ``gate_proj``, ``up_proj`` and ``down_proj``."""
    return ClampedMlp(weights.make_linear("gate_proj", "up_proj"), weights.make_linear("down_proj"), clamp)


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

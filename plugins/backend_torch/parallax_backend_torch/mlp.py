"""What comes after attention where there are no experts, and the layer most families are made of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch

from parallax_backend_torch.arithmetic import Norm
from parallax_backend_torch.kernels.linear import Gate
from parallax_backend_torch.step import Spot, Step
from parallax_backend_torch.weights import Weights


class Mixer(Protocol):
    """Something that mixes within each token."""

    def __call__(self, x: torch.Tensor, residual: torch.Tensor | None) -> torch.Tensor:
        """Return what it gives, plus ``residual``: [tokens, width]."""


class Looker(Protocol):
    """Something that mixes between tokens."""

    def __call__(self, x: torch.Tensor, residual: torch.Tensor | None, step: Step, spot: Spot) -> torch.Tensor:
        """Return what it gives, plus ``residual``: [tokens, width]."""


class GatedMlp:
    """Gate, up and down (arXiv 2002.05202).

    Args:
        weights: with ``gate_proj``, ``up_proj`` and ``down_proj``.
        gate: what the gate goes through.
    """

    def __init__(self, weights: Weights, gate: Gate = "silu") -> None:
        self._into = weights.make_linear("gate_proj", "up_proj")
        self._back = weights.make_linear("down_proj")
        self._gate: Gate = gate

    def __call__(self, x: torch.Tensor, residual: torch.Tensor | None) -> torch.Tensor:
        """Return what it gives, plus ``residual``: [tokens, width]."""
        return self._back.apply(self._into.apply_gated(x, self._gate), residual)


@dataclass(frozen=True, eq=False, slots=True)
class PlainLayer:
    """Attention and a mixer, each behind a norm, and each added to what was before."""

    attention_norm: Norm
    attention: Looker
    mixer_norm: Norm
    mixer: Mixer

    def __call__(self, hidden: torch.Tensor, step: Step, spot: Spot) -> torch.Tensor:
        """Return the hidden states after the layer."""
        hidden = self.attention(self.attention_norm(hidden), hidden, step, spot)
        return self.mixer(self.mixer_norm(hidden), hidden)


def build_plain(weights: Weights, eps: float, attention: Looker, mixer: Mixer) -> PlainLayer:
    """Return a layer of these two, with the norms ``input_layernorm`` and ``post_attention_layernorm``."""
    first, second = (
        Norm(weights.read_vector(f"{name}.weight"), eps) for name in ("input_layernorm", "post_attention_layernorm")
    )
    return PlainLayer(first, attention, second, mixer)

"""Gated MLPs whose gate and input are clamped before the activation, as experts and whole."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn import functional

from parallax_backend_torch.api import Config, Expert, Packed, Weights, build_experts
from parallax_models.deepseek_v3 import read_experts


@dataclass(frozen=True, slots=True)
class ClampedMlp:
    """Gate, up and down; the gate is clamped from above, and up from both sides."""

    into: Packed
    """The rows of gate, then those of up."""
    back: Packed
    limit: float

    def __call__(self, x: torch.Tensor, residual: torch.Tensor | None = None) -> torch.Tensor:
        """Return the output plus ``residual``: [tokens, width]."""
        gate, up = self.into.apply(x).chunk(2, dim=1)
        gated = functional.silu(gate.clamp(max=self.limit)) * up.clamp(-self.limit, self.limit)
        return self.back.apply(gated, residual)


def clamp_experts(config: Config, weights: Weights) -> list[Expert | ClampedMlp]:
    """Return the experts of a layer, clamped at ``swiglu_limit`` unless that is 0."""
    limit, made = config.number("swiglu_limit", 10.0), build_experts(weights, read_experts(config).num)
    return [ClampedMlp(each.into, each.back, limit) if limit > 0 else each for each in made]

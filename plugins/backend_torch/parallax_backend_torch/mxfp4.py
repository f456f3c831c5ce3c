"""Weights in MXFP4: blocks of 32 four-bit numbers with an exponent (OCP Microscaling Formats 1.0)."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from parallax_backend_torch.kernels.ggml import DOUBLED, HALF_BIAS
from parallax_backend_torch.kernels.quantize import Quantized

EXPONENTS = range(HALF_BIAS - 24, HALF_BIAS + 16)
"""The exponents of scales that float16 has."""


@dataclass(frozen=True, slots=True)
class MicroRows:
    """`Rows` of a matrix [out, in], as codes that are steps of half a scale: exactly, if `are_codes`."""

    blocks: torch.Tensor
    """uint8 of shape [out, groups, 16]: two numbers per byte, the first in the lower bits."""
    scales: torch.Tensor
    """uint8 of shape [out, groups]: the exponent of each group."""

    @property
    def shape(self) -> tuple[int, int]:
        """Outputs and inputs."""
        return int(self.blocks.shape[0]), self.blocks.shape[1] * self.blocks.shape[2] * 2

    @property
    def are_codes(self) -> bool:
        """Whether float16 holds all scales."""
        return bool(((self.scales >= EXPONENTS.start) & (self.scales < EXPONENTS.stop)).all())

    def read(self, start: int, stop: int) -> Quantized:
        """Return some of the rows."""
        scale = torch.exp2(self.scales[start:stop].float() - HALF_BIAS).half()
        return Quantized(read_steps(self.blocks[start:stop]).flatten(1), scale, None)


def read_steps(blocks: torch.Tensor) -> torch.Tensor:
    """Return twice the numbers of blocks: int8 of shape [out, groups, 32]."""
    pairs = torch.stack([blocks & 15, blocks >> 4], dim=-1)
    return torch.tensor(DOUBLED, dtype=torch.int8)[pairs.to(torch.int64)].flatten(2)


def widen_blocks(blocks: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """Return a matrix [out, in] in bfloat16, which holds every such number exactly; see `MicroRows`."""
    numbers = read_steps(blocks).float()
    return torch.ldexp(numbers, scales.to(torch.int32)[..., None] - HALF_BIAS).flatten(1).to(torch.bfloat16)

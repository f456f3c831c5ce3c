"""Weights in MXFP4: blocks of 32 four-bit numbers with an exponent (OCP Microscaling Formats 1.0)."""

from __future__ import annotations

import torch

VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""The values of the lower three bits of a number in E2M1; the fourth bit is the sign."""
BIAS = 127
"""The bias of exponents in E8M0."""


def widen_blocks(blocks: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """Return a matrix [out, in] in bfloat16, which holds every such number exactly.

    Args:
        blocks: uint8 of shape [out, groups, 16]: two numbers per byte, the first in the lower bits.
        scales: uint8 of shape [out, groups]: the exponent of each group.
    """
    table = torch.tensor([*VALUES, *(-value for value in VALUES)], dtype=torch.float32)
    pairs = torch.stack([blocks & 15, blocks >> 4], dim=-1)
    numbers = table[pairs.to(torch.int64)].flatten(2)
    return torch.ldexp(numbers, scales.to(torch.int32)[..., None] - BIAS).flatten(1).to(torch.bfloat16)

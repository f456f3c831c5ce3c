"""What lies between the products of a layer."""

from __future__ import annotations

import torch
from torch.nn import functional


def normalize_rms(
    x: torch.Tensor, weight: torch.Tensor, eps: float, offset: float = 0.0, residual: torch.Tensor | None = None
) -> torch.Tensor:
    """Return ``x / rms(x) * (offset + weight)`` over the last dimension, in float32.

    Args:
        x: float32 [..., dim].
        weight: float32 [dim].
        eps: added to the mean of squares.
        offset: 1 for models that keep the weight as its difference from 1.
        residual: float32, shaped as ``x``; if given, ``x`` is added to it in place, and the sum is normalised.
    """
    if residual is not None:
        x = residual.add_(x)
    scale = torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)
    return x * scale * (weight + offset if offset else weight)


def rotate_halves(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> None:
    """Rotate, in place, each pair (i, i + n) of the first 2n numbers of every head; the rest stays.

    Args:
        x: float32 [tokens, heads, dim], queries or keys or both in a row, the last two dimensions contiguous.
        cos: float32 [tokens, n], contiguous.
        sin: the same.
    """
    half = cos.shape[1]
    first, second = x[..., :half].clone(), x[..., half : 2 * half].clone()
    cos, sin = cos[:, None], sin[:, None]
    x[..., :half] = first * cos - second * sin
    x[..., half : 2 * half] = second * cos + first * sin


def multiply_silu(gate: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Return ``silu(gate) * value``, float32 [rows, n] each, contiguous in the last dimension."""
    return functional.silu(gate) * value


def multiply_gelu(gate: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Return ``gelu(gate) * value``, with the tanh form of gelu; shapes as of ``multiply_silu``."""
    return functional.gelu(gate, approximate="tanh") * value

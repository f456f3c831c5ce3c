"""The operations between the matrix products of a layer."""

from __future__ import annotations

from typing import Literal

import torch
from torch.nn import functional

from parallax_backend_torch.kernels.library import find_library
from parallax_backend_torch.kernels.panels import GATES


def normalize_rms(
    x: torch.Tensor, weight: torch.Tensor, eps: float, offset: float = 0.0, residual: torch.Tensor | None = None
) -> torch.Tensor:
    """Return ``x / rms(x) * (offset + weight)`` over the last dimension, in float32.

    Args:
        x: float32 [rows, dim] or [tokens, heads, dim].
        weight: float32 [dim].
        eps: added to the mean of squares.
        offset: 1 for models that store the weight as its difference from 1, else 0.
        residual: float32, of the shape of ``x``; if given, ``x`` is added to it in place, and the sum is normalised.
    """
    if weight.shape != x.shape[-1:]:
        raise ValueError(f"a weight {list(weight.shape)} does not fit {list(x.shape)}")
    library = find_library()
    if library is not None and is_plain(x, weight) and (residual is None or is_whole(residual, x)):
        out = torch.empty(x.shape)
        inner, dim = (x.shape[1], x.shape[2]) if x.dim() == 3 else (1, x.shape[-1])  # noqa: PLR2004 -- [tokens, heads, dim]
        extra = None if residual is None else residual.data_ptr()
        place, rows = weight.data_ptr(), x.shape[0]
        library.plx_normalize(x.data_ptr(), x.stride(0), extra, place, offset, eps, rows, inner, dim, out.data_ptr())
        return out
    if residual is not None:
        x = residual.add_(x)
    scale = torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)
    return x * scale * (weight + offset if offset else weight)


def rotate_halves(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> None:
    """Rotate in place each pair (i, i + n) of the first 2n numbers of every head; the others are not changed.

    Args:
        x: float32 [tokens, heads, dim], queries, keys or both, the last two dimensions contiguous.
        cos: float32 [tokens, n], contiguous.
        sin: as ``cos``.
    """
    half = cos.shape[1]
    if cos.shape != sin.shape or len(cos) != len(x) or 2 * half > x.shape[-1]:
        raise ValueError(f"cos {list(cos.shape)} and sin {list(sin.shape)} do not fit heads {list(x.shape)}")
    library = find_library()
    if library is not None and is_plain(x, cos) and is_whole(cos, cos) and is_whole(sin, cos) and x.dim() == 3:  # noqa: PLR2004
        tokens, heads, dim = x.shape
        library.plx_rotate(x.data_ptr(), x.stride(0), cos.data_ptr(), sin.data_ptr(), tokens, heads, dim, half)
        return
    first, second = x[..., :half].clone(), x[..., half : 2 * half].clone()
    cos, sin = cos[:, None], sin[:, None]
    x[..., :half] = first * cos - second * sin
    x[..., half : 2 * half] = second * cos + first * sin


def find_largest(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the index of the largest number of each row, the first of equal ones, and the number, in one pass.

    Args:
        x: float32 [rows, n], n at least 1.

    Returns:
        int64 [rows] and float32 [rows]; for a row with NaN, the number is NaN and the index arbitrary.
    """
    library = find_library()
    if library is None or x.device.type != "cpu" or not is_whole(x, x):
        most, places = x.max(-1)
        return places, most
    places, most = torch.empty(len(x), dtype=torch.int64), torch.empty(len(x))
    library.plx_find_largest(x.data_ptr(), x.shape[0], x.shape[1], places.data_ptr(), most.data_ptr())
    return places, most


def multiply_silu(gate: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Return ``silu(gate) * value``, float32 [rows, n] each, contiguous in the last dimension."""
    return _multiply_gate("silu", gate, value)


def multiply_gelu(gate: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Return ``gelu(gate) * value``, with the tanh form of gelu; shapes as for ``multiply_silu``."""
    return _multiply_gate("gelu_tanh", gate, value)


def _multiply_gate(kind: Literal["silu", "gelu_tanh"], gate: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    library = find_library()
    fits = gate.dim() == 2 and gate.shape == value.shape and is_plain(gate, value)  # noqa: PLR2004 -- [rows, n]
    if library is None or not fits:
        return (functional.silu(gate) if kind == "silu" else functional.gelu(gate, approximate="tanh")) * value
    out = torch.empty(gate.shape)
    rows, count = gate.shape
    places = gate.data_ptr(), gate.stride(0), value.data_ptr(), value.stride(0)
    library.plx_gate(GATES[kind], *places, rows, count, out.data_ptr())
    return out


def is_plain(x: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether both are float32 and contiguous from their second dimension on."""
    return all(
        each.dtype == torch.float32 and each.stride(-1) == 1 and (each.dim() < 3 or each.stride(1) == each.shape[2])  # noqa: PLR2004
        for each in (x, other)
    )


def is_whole(x: torch.Tensor, like: torch.Tensor) -> bool:
    """Whether a tensor is float32, contiguous, and has the shape of another."""
    return bool(x.dtype == torch.float32 and x.is_contiguous() and x.shape == like.shape)

"""Float32 values as integers of the same order, and a search among them."""

from __future__ import annotations

from collections.abc import Callable

import torch

LEAST = -(2**31)
LEAST_FINITE = -2139095040
"""What the least finite value is mapped to; only minus infinity is below."""
MAGNITUDE = 0x7FFFFFFF


def map_floats(values: torch.Tensor) -> torch.Tensor:
    """Map float32 to int32 so that smaller values get smaller integers, and equal values equal ones.

    Of a negative number every bit but the sign is flipped.
    """
    bits = (values + 0.0).view(torch.int32)  # adding zero makes the negative zero a positive one
    return bits ^ ((bits >> 31) & MAGNITUDE)


def bisect_keys(holds: Callable[[torch.Tensor], torch.Tensor], like: torch.Tensor) -> torch.Tensor:
    """Return the largest int32 for which ``holds``, which is true up to some key and false above; a bit at a time.

    Args:
        holds: told keys of shape [rows, 1], says for which it is so: bool of the same shape.
        like: a tensor [rows, ...] on the device to be used.
    """
    key = torch.full((len(like), 1), LEAST, dtype=torch.int32, device=like.device)
    zero = torch.zeros_like(key)
    key = torch.where(holds(zero), zero, key)
    for bit in range(30, -1, -1):
        higher = key + (1 << bit)
        key = torch.where(holds(higher), higher, key)
    return key

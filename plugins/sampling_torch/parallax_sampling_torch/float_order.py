"""Maps float32 values to integers of the same order, and searches among them."""

from __future__ import annotations

from collections.abc import Callable

import torch

LEAST = -(2**31)
LEAST_FINITE = -2139095040
"""The integer of the smallest finite value; only minus infinity is below."""
MAGNITUDE = 0x7FFFFFFF


def map_floats(values: torch.Tensor) -> torch.Tensor:
    """Map float32 to int32 so that smaller values get smaller integers, and equal values equal ones.

    For a negative number, every bit except the sign is flipped.
    """
    bits = (values + 0.0).view(torch.int32)  # adding zero turns negative zero into positive zero
    return bits ^ ((bits >> 31) & MAGNITUDE)


def bisect_keys(holds: Callable[[torch.Tensor], torch.Tensor], like: torch.Tensor) -> torch.Tensor:
    """Return the largest int32 for which ``holds`` is true, bit by bit; it is true up to that key, and false above.

    Args:
        holds: a condition on keys of shape [rows, 1], which returns bool of the same shape.
        like: a tensor [rows, ...] on the device to use.
    """
    key = torch.full((len(like), 1), LEAST, dtype=torch.int32, device=like.device)
    zero = torch.zeros_like(key)
    key = torch.where(holds(zero), zero, key)
    for bit in range(30, -1, -1):
        higher = key + (1 << bit)
        key = torch.where(holds(higher), higher, key)
    return key

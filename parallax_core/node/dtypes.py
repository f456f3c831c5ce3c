"""Converts hidden states between dtypes, for stages that compute in different ones.

The wire carries the sender's dtype; the receiver converts. No other module of core imports numpy, and this one is
imported only when dtypes differ.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from parallax_core.contracts.tensor import Data, Tensor

Array = npt.NDArray[Any]
SHIFT = np.uint32(16)
"""A bfloat16 is the upper half of a float32."""
ONE = np.uint32(1)
BELOW_HALF = np.uint32(0x7FFF)
"""Just below half of the part that is cut off, in units of the last place of a float32."""
QUIET = np.uint16(0x40)
"""The quiet bit of a bfloat16 NaN; setting it keeps a NaN a NaN when its lower bits are cut off."""


def convert(tensor: Tensor, dtype: str) -> Tensor:
    """Return ``tensor`` in another dtype of `FLOATS`: exact if it is wider, else rounded to nearest, ties to even.

    Values beyond the range of ``dtype`` become infinite; a NaN stays a NaN.

    Args:
        tensor: in a dtype of `FLOATS`, of any shape.
        dtype: one of `FLOATS`.
    """
    if tensor.dtype == dtype:
        return tensor
    with np.errstate(all="ignore"):
        made = _NARROW[dtype](_WIDEN[tensor.dtype](tensor.data))
    return Tensor(dtype, tensor.shape, made.view(np.uint8).data)


def _read_float32(data: Data) -> Array:
    return np.frombuffer(data, "<f4")


def _read_float16(data: Data) -> Array:
    return np.frombuffer(data, "<f2").astype("<f4")


def _read_bfloat16(data: Data) -> Array:
    wide = np.frombuffer(data, "<u2").astype("<u4")
    wide <<= SHIFT
    return wide.view("<f4")


def _narrow_to_float16(values: Array) -> Array:
    return values.astype("<f2")


def _narrow_to_bfloat16(values: Array) -> Array:
    bits = values.view("<u4")
    rounded = (bits >> SHIFT) & ONE
    rounded += BELOW_HALF
    rounded += bits
    rounded >>= SHIFT
    made = rounded.astype("<u2")
    if (nan := np.isnan(values)).any():
        made[nan] = (bits[nan] >> SHIFT).astype("<u2") | QUIET
    return made


def _keep(values: Array) -> Array:
    return values


_WIDEN: dict[str, Callable[[Data], Array]] = {
    "float32": _read_float32,
    "float16": _read_float16,
    "bfloat16": _read_bfloat16,
}
_NARROW: dict[str, Callable[[Array], Array]] = {
    "float32": _keep,
    "float16": _narrow_to_float16,
    "bfloat16": _narrow_to_bfloat16,
}

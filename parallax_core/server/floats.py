"""Reads the numbers of a tensor."""

from __future__ import annotations

import sys
from array import array

from parallax_core.contracts.tensor import Tensor


def read_floats(tensor: Tensor) -> array[float]:
    """Return the numbers of a tensor of any shape, in a dtype of `FLOATS`, in single precision."""
    if tensor.dtype != "float32":
        from parallax_core.node.dtypes import convert

        tensor = convert(tensor, "float32")
    values = array("f")
    values.frombytes(tensor.data)
    if sys.byteorder == "big":
        values.byteswap()
    return values

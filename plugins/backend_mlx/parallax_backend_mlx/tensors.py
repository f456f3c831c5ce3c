"""Converts between the arrays of MLX and the tensors sent between stages."""

from __future__ import annotations

from typing import Any

from parallax_backend_mlx.runtime import mx
from parallax_core.api import Tensor

DTYPES: dict[str, mx.Dtype] = {"float32": mx.float32, "float16": mx.float16, "bfloat16": mx.bfloat16}
WORD = 4
"""Bytes of a float32. Items are read as unsigned integers, since `struct` has no name for bfloat16."""


def read_tensor(tensor: Tensor) -> mx.array:
    """Return ``tensor`` as an array of its own dtype and shape.

    Raises:
        ValueError: if its dtype is not float32, float16 or bfloat16.
    """
    if tensor.dtype not in DTYPES:
        message = f"hidden states are {tensor.dtype}; they must be one of {', '.join(DTYPES)}"
        raise ValueError(message)
    dtype = DTYPES[tensor.dtype]
    data = memoryview(tensor.data).cast("B")
    items: Any = data.cast("I") if dtype.size == WORD else data.cast("H")
    return mx.array(items).view(dtype).reshape(tensor.shape)


def write_tensor(array: mx.array) -> Tensor:
    """Return ``array``, of one of the floating dtypes, as a tensor; evaluates it, and shares its memory."""
    integers = mx.contiguous(array).view(mx.uint32 if array.dtype.size == WORD else mx.uint16)
    mx.eval(integers)
    return Tensor(name_dtype(array.dtype), tuple(array.shape), memoryview(integers))  # type: ignore[arg-type]


def name_dtype(dtype: mx.Dtype) -> str:
    """Return the name of ``dtype``, such as ``bfloat16``."""
    return str(dtype).rpartition(".")[2]

"""Tensors as bytes: what crosses between stages of different engines."""

from __future__ import annotations

import math
from dataclasses import dataclass

ITEM_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2, "uint8": 1, "int32": 4, "uint32": 4, "int64": 8}
"""The dtypes there are, and the size of one element in bytes."""

FLOATS = frozenset({"float32", "float16", "bfloat16"})
"""The dtypes hidden states can have."""

Data = bytes | bytearray | memoryview
"""Bytes, owned or borrowed."""


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """A tensor a stage takes or gives: its last axis, and the dtype it prefers on the wire."""

    width: int
    dtype: str


@dataclass(frozen=True, slots=True)
class Tensor:
    """Elements in row-major order, little endian.

    Raises:
        ValueError: if dtype, shape and the size of the data do not fit together.
    """

    dtype: str
    """One of `ITEM_BYTES`."""
    shape: tuple[int, ...]
    data: Data
    """C-contiguous; never written to once it is here."""

    def __post_init__(self) -> None:
        size = ITEM_BYTES.get(self.dtype, 0) * math.prod(self.shape)
        if self.dtype not in ITEM_BYTES or min(self.shape, default=0) < 0 or memoryview(self.data).nbytes != size:
            message = f"{self.dtype} of shape {self.shape} is not {memoryview(self.data).nbytes} bytes"
            raise ValueError(message)

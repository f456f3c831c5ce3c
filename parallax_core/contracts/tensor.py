"""Tensors as bytes, as they pass between stages, possibly of different backends."""

from __future__ import annotations

import math
from dataclasses import dataclass

ITEM_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2, "uint8": 1, "int32": 4, "uint32": 4, "int64": 8}
"""The dtypes of tensors that pass between stages, and the size of one element in bytes."""

STORED_BYTES = {**ITEM_BYTES, "float8_e4m3fn": 1, "float8_e5m2": 1, "float8_e8m0fnu": 1, "int8": 1}
"""The same, with dtypes that only the weights in files have."""

FLOATS = frozenset({"float32", "float16", "bfloat16"})
"""The possible dtypes of hidden states."""

Data = bytes | bytearray | memoryview
"""Bytes, owned or borrowed."""


@dataclass(frozen=True, slots=True)
class TensorSpec:
    r"""A tensor that a stage takes or gives: of shape [tokens, \*shape, width]."""

    width: int
    """The size of its last axis."""
    dtype: str
    """The preferred dtype on the wire."""
    name: str = "hidden"
    """The name of its `Plane`: a stage takes it under the name under which the one before gives it."""
    shape: tuple[int, ...] = ()
    """The axes between that of the tokens and the last, such as (4,) for four streams."""
    is_exact: bool = False
    """Whether it must cross in this dtype; otherwise a stage may take it converted to another float."""

    @property
    def token_shape(self) -> tuple[int, ...]:
        """The axes of one token."""
        return (*self.shape, self.width)

    @property
    def token_bytes(self) -> int:
        """The bytes of one token; 0 for an unknown dtype."""
        return math.prod(self.token_shape) * ITEM_BYTES.get(self.dtype, 0)


@dataclass(frozen=True, slots=True)
class Tensor:
    """Elements in row-major order, little endian.

    Raises:
        ValueError: if the dtype is unknown, or the data's size does not match dtype and shape.
    """

    dtype: str
    """One of `STORED_BYTES`."""
    shape: tuple[int, ...]
    data: Data
    """C-contiguous; must not be modified afterwards."""

    def __post_init__(self) -> None:
        size = STORED_BYTES.get(self.dtype, 0) * math.prod(self.shape)
        if self.dtype not in STORED_BYTES or min(self.shape, default=0) < 0 or memoryview(self.data).nbytes != size:
            raise ValueError(f"{self.dtype} of shape {self.shape} is not {memoryview(self.data).nbytes} bytes")

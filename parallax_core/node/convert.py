"""Hidden states from one dtype to another, where a stage gives what the next does not compute in.

The wire carries what a stage gives; whoever receives it converts it. No tensor library is at hand here: what is only a
matter of bytes is done with slices.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable

from parallax_core.contracts.tensor import ITEM_BYTES, Data, Tensor

FLOATS = frozenset({"float32", "float16", "bfloat16"})
"""The dtypes hidden states can have."""
HALF = 0x7FFF
"""Added before the lower half of a float32 is cut off, it rounds to the nearest."""


def convert(tensor: Tensor, dtype: str) -> Tensor:
    """Return ``tensor`` in another dtype of `FLOATS`: exactly where it is wider, else rounded to the nearest.

    What is beyond the range of float16 becomes infinite.
    """
    if tensor.dtype == dtype:
        return tensor
    data = TO_FLOAT32[tensor.dtype](bytes(tensor.data))
    return Tensor(dtype, tensor.shape, FROM_FLOAT32[dtype](data))


def _widen_bfloat16(data: bytes) -> Data:
    wide = bytearray(2 * len(data))
    wide[2::4], wide[3::4] = data[0::2], data[1::2]
    return wide


def _widen_float16(data: bytes) -> Data:
    count = len(data) // ITEM_BYTES["float16"]
    return struct.pack(f"<{count}f", *struct.unpack(f"<{count}e", data))


def _narrow_bfloat16(data: Data) -> Data:
    bits = _read_words(data)
    halves = array("H", [_round(word) for word in bits])
    return _in_order(halves)


def _round(word: int) -> int:
    """Return the upper half of a float32, to the nearest, of two that are as near the even one; a NaN stays one."""
    if word & 0x7FFFFFFF > 0x7F800000:  # noqa: PLR2004 -- what lies above infinity
        return (word >> 16) | 0x40
    return (word + HALF + ((word >> 16) & 1)) >> 16


def _narrow_float16(data: Data) -> Data:
    count = len(data) // ITEM_BYTES["float32"]
    most = 65504.0
    values = struct.unpack(f"<{count}f", data)
    try:
        return struct.pack(f"<{count}e", *values)
    except OverflowError:
        inf = float("inf")
        kept = [value if not abs(value) >= most + 16 else (inf if value > 0 else -inf) for value in values]
        return struct.pack(f"<{count}e", *kept)


def _read_words(data: Data) -> array[int]:
    words = array("I")
    assert words.itemsize == ITEM_BYTES["float32"]
    words.frombytes(data)
    if not IS_LITTLE:
        words.byteswap()
    return words


def _in_order(halves: array[int]) -> bytes:
    if not IS_LITTLE:
        halves.byteswap()
    return halves.tobytes()


def _keep(data: Data) -> Data:
    return data


IS_LITTLE = struct.pack("=H", 1) == struct.pack("<H", 1)
TO_FLOAT32: dict[str, Callable[[bytes], Data]] = {
    "float32": _keep,
    "float16": _widen_float16,
    "bfloat16": _widen_bfloat16,
}
FROM_FLOAT32: dict[str, Callable[[Data], Data]] = {
    "float32": _keep,
    "float16": _narrow_float16,
    "bfloat16": _narrow_bfloat16,
}

"""Reads stored numbers as float32: floats of 4, 8 and 16 bits, and integers packed into words."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from parallax_core.api import Tensor

Array = NDArray[Any]
Floats = NDArray[np.float32]
WORD_BITS = 32
NIBBLE = 15
E8M0_BIAS = 127
STORED = {
    "float32": "<f4",
    "float16": "<f2",
    "bfloat16": "<u2",
    "float8_e4m3fn": "u1",
    "float8_e5m2": "u1",
    "float8_e8m0fnu": "u1",
    "uint8": "u1",
    "int8": "i1",
    "int32": "<i4",
    "uint32": "<u4",
    "int64": "<i8",
}
"""How numpy reads each dtype; floats that it does not know as integers of their size."""


def _list_e4m3() -> Floats:
    """Return the 256 values of E4M3FN (OCP 8-bit Floating Point Specification 1.0), which has no infinities."""
    codes = np.arange(256)
    exponents, fractions = codes >> 3 & 15, (codes & 7).astype(np.float32)
    sizes = np.where(exponents == 0, np.ldexp(fractions, -9), np.ldexp(8 + fractions, exponents - 10))
    sizes[codes & 127 == 127] = np.nan  # noqa: PLR2004 -- all bits but the sign
    return np.where(codes & 128, -sizes, sizes).astype(np.float32)


E4M3 = _list_e4m3()
E5M2: Floats = (np.arange(256, dtype=np.uint16) << 8).view(np.float16).astype(np.float32)
"""E5M2 is the upper half of a float16."""
E8M0: Floats = np.where(np.arange(256) == 255, np.nan, np.ldexp(1.0, np.arange(256) - E8M0_BIAS)).astype(np.float32)  # noqa: PLR2004
E2M1: Floats = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)
E2M1_STEPS = (2 * E2M1 + 16).astype(np.uint8)
"""The numbers of E2M1 as steps of a half, from -8 on."""
TABLES = {"float8_e4m3fn": E4M3, "float8_e5m2": E5M2, "float8_e8m0fnu": E8M0}


def view_array(tensor: Tensor) -> Array:
    """Return a tensor over the same memory; floats that numpy does not know as integers."""
    return np.frombuffer(tensor.data, STORED[tensor.dtype]).reshape(tensor.shape)


def widen(dtype: str, values: Array) -> Floats:
    """Return numbers of a dtype, as `view_array` gives them, in float32, exactly; integers up to 2**24."""
    if dtype in TABLES:
        return TABLES[dtype][values]
    if dtype == "bfloat16":
        return (values.astype(np.uint32) << 16).view(np.float32)
    return values.astype(np.float32)


def unpack(words: Array, bits: int, count: int) -> NDArray[np.uint8]:
    r"""Return ``count`` unsigned integers of ``bits`` bits from the last axis of 32-bit words, lowest bits first.

    They follow one another without gaps, also across words, as in GPTQ and in mlx-lm.

    Args:
        words: [\*, words], int32 or uint32.
        bits: 2 to 8.
        count: how many the words of one row hold at least.
    """
    if WORD_BITS % bits == 0:
        shifts = np.arange(0, WORD_BITS, bits, dtype=np.uint32)
        found = words.view(np.uint32)[..., None] >> shifts & np.uint32(2**bits - 1)
        return found.astype(np.uint8).reshape(*words.shape[:-1], -1)[..., :count]
    stream = np.unpackbits(np.ascontiguousarray(words).view(np.uint8), axis=-1, bitorder="little")
    digits = stream[..., : count * bits].reshape(*words.shape[:-1], count, bits)
    return np.packbits(digits, axis=-1, bitorder="little")[..., 0]


def unpack_between(words: Array, bits: int, start: int, stop: int) -> NDArray[np.uint8]:
    r"""Return the integers ``start`` to ``stop`` of each row of words; see `unpack`. Others are not unpacked."""
    first, end = start // WORD_BITS, -(-stop // WORD_BITS)  # as many integers as a word has bits fill whole words
    part = np.ascontiguousarray(words[..., first * bits : end * bits])
    return unpack(part, bits, stop - first * WORD_BITS)[..., start - first * WORD_BITS :]


def split_nibbles(packed: Array) -> Array:
    r"""Return the numbers of 4 bits in bytes [\*, n], the lower half first: [\*, 2 n]."""
    return np.stack([packed & NIBBLE, packed >> 4], axis=-1).reshape(*packed.shape[:-1], -1)

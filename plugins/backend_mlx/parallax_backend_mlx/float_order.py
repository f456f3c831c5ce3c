"""Maps float32 values to integers of the same order."""

from __future__ import annotations

from parallax_backend_mlx.runtime import mx

SIGN_BIT = 0x80000000
LEAST_FINITE = 0x00800000
"""The integer of the smallest finite value; only minus infinity is below."""


def map_floats(values: mx.array) -> mx.array:
    """Map float32 to uint32 so that smaller values get smaller integers and equal values equal ones.

    The sign bit of a positive number is flipped, and every bit of a negative one.
    """
    bits = mx.where(values == 0, 0.0, values).view(mx.uint32)
    return mx.where(bits >= mx.array(SIGN_BIT, dtype=mx.uint32), ~bits, bits | mx.array(SIGN_BIT, dtype=mx.uint32))

"""Exponentials of arrays, computed by sums and products.

MLX computes them one by one on x86: 14 ns each, a quarter of a prefill's time. A product of arrays takes 0.3 ns per
number, so twenty products are more than twice as fast, and six times as fast if they are compiled.

With ``x / ln 2 = k + f``, k an integer and f at most a half, ``e^x`` is ``2^k`` times the Taylor series of ``2^f``,
whose first omitted term is 1.2e-7 at most: about the last bit of a float32.
"""

from __future__ import annotations

import math

from parallax_backend_mlx.runtime import mx

LARGEST = 88.0
"""The largest exponent whose power fits a float32."""
LEAST_POWER = -126.0
"""The exponent, to base 2, of the smallest float32 of full precision."""
BIAS = 127
"""The exponent bias of float32; the exponent begins at bit `FRACTION`."""
FRACTION = 23
ROUNDER = 1.5 * 2**FRACTION
"""Adding this to a float32 rounds it to an integer, which is then in the lowest bits: no bit is left for a fraction."""
TERMS = [math.log(2) ** power / math.factorial(power) for power in range(7)]


def exponentiate(x: mx.array) -> mx.array:
    """Return ``e**x``, not evaluated, within 3e-7 of its size where ``x`` is near 0, and 1e-5 near -87.

    Args:
        x: float32 of any shape, at most `LARGEST`. Values below -87 count as -87, and NaN stays NaN.
    """
    doublings = mx.maximum(x * (1 / math.log(2)), LEAST_POWER)
    rounded = doublings + ROUNDER
    rest = doublings - (rounded - ROUNDER)
    series = rest * TERMS[-1] + TERMS[-2]
    for term in reversed(TERMS[:-2]):
        series = series * rest + term
    power = (rounded.view(mx.uint32) + BIAS) << FRACTION
    result: mx.array = series * power.view(mx.float32)
    return result

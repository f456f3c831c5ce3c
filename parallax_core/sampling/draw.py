"""The noise of a draw: Gumbel-max from a hash, without sorting, running sums or state.

A token is drawn as the largest of ``logit / temperature + gumbel(hash32(key, token))`` over the tokens the filters
keep, which samples exactly from their softmax (the Gumbel-max trick; Gumbel 1954, Maddison et al. 2014). Because the
noise of a token depends only on seed, choice, position and token id, nearly equal logits give the same token on every
device.

The finaliser is "lowbias32" of Chris Wellons' hash-prospector.
"""

from __future__ import annotations

import math
import struct

MASK32 = 0xFFFFFFFF
GOLDEN32 = 0x9E3779B9
"""2**32 divided by the golden ratio; keeps zero inputs away from the fixed point of `mix32`."""


def mix32(value: int) -> int:
    """Scramble 32 bits: a bijection on ``range(2**32)`` in which each input bit flips each output bit half the time."""
    value ^= value >> 16
    value = (value * 0x7FEB352D) & MASK32
    value ^= value >> 15
    value = (value * 0x846CA68B) & MASK32
    return value ^ (value >> 16)


def draw_key(seed: int, position: int, choice: int = 0) -> int:
    """Return the 32-bit key of one draw.

    Args:
        seed: in ``range(2**64)``.
        position: the position the drawn token will have in its sequence, counted from the first prompt token; its
            lowest 32 bits count.
        choice: the index of the answer among those to one request; its lowest 32 bits count.
    """
    low = mix32((seed & MASK32) ^ GOLDEN32)
    high = mix32(low ^ (seed >> 32 & MASK32))
    chosen = mix32(high ^ (choice & MASK32))
    return mix32(chosen ^ (position & MASK32))


def hash32(key: int, token: int) -> int:
    """Return the 32 random bits of ``token`` in the draw with ``key``."""
    return mix32(key ^ mix32((token + GOLDEN32) & MASK32))


def gumbel(bits: int) -> float:
    """Turn 32 random bits into standard Gumbel noise, at most 22.9, with float32 rounding where it affects results.

    ``v = (bits + 0.5) * 2**-32`` is rounded to float32, so that small v, which win, keep full precision. A v that
    rounds to 1 gives minus infinity, which never wins, unless the filters keep no other token.
    """
    v = _float32(_float32(bits + 0.5) * 2.0**-32)
    if v >= 1.0:
        return -math.inf
    return -math.log(-math.log1p(-v))


def _float32(value: float) -> float:
    return float(struct.unpack("<f", struct.pack("<f", value))[0])

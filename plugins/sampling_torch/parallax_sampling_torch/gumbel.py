"""Computes the noise of draws for many rows and tokens: `parallax_core.api.gumbel` and `hash32`."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from parallax_core.api import GOLDEN32, draw_key
from parallax_sampling_torch.draw_inputs import DrawInput

SIGN = 1 << 31
FIRST, SECOND = 0x7FEB352D, 0x846CA68B
"""The factors of `mix32`."""


class Noise:
    """Computes noise for one vocabulary; the part that depends only on the token is computed once."""

    def __init__(self, vocab_size: int, device: torch.device) -> None:
        self._hashes = _mix(torch.arange(vocab_size, dtype=torch.int32, device=device) + _sign(GOLDEN32))

    def make(self, draw_inputs: Sequence[DrawInput], ids: torch.Tensor | None = None) -> torch.Tensor:
        """Return the noise of each row and token, float32 of shape [rows, tokens].

        Args:
            draw_inputs: one for each row.
            ids: the tokens of each row, int64 of shape [rows, tokens]; None: all.
        """
        keys = [_sign(draw_key(each.sampling.seed, each.position, each.choice)) for each in draw_inputs]
        hashes = self._hashes if ids is None else self._hashes[ids]
        column = torch.tensor(keys, dtype=torch.int32, device=hashes.device)[:, None]
        bits = _mix(hashes ^ column)
        # Both halves are exact in float32, so the sum is bits + 0.5 rounded once.
        high = ((bits >> 8) & 0xFFFFFF).to(torch.float32).mul_(256)
        v = high.add_((bits & 0xFF).to(torch.float32).add_(0.5)).mul_(2.0**-32)
        return torch.where(v >= 1, -torch.inf, -torch.log(-torch.log1p(-v)))


def _mix(bits: torch.Tensor) -> torch.Tensor:
    """Compute ``mix32`` on each element of an int32 tensor, read as unsigned; products wrap."""
    bits = (bits ^ ((bits >> 16) & 0xFFFF)) * _sign(FIRST)
    bits = (bits ^ ((bits >> 15) & 0x1FFFF)) * _sign(SECOND)
    return bits ^ ((bits >> 16) & 0xFFFF)


def _sign(value: int) -> int:
    """Return the signed integer with the same 32 bits."""
    return value - 2 * SIGN if value & SIGN else value

"""Quantises weights: codes of one byte, and a scale (and an offset) for each group of 32 inputs.

A weight is ``scale * code + low``. There are three kinds, the first two of which are the types Q8_0 and Q4_1 of GGUF
files:

* ``int8``: codes -127 .. 127, no ``low``; ``scale`` is the largest magnitude / 127.
* ``int4``: codes 0 .. 15; ``scale`` and ``low`` begin as the range of the group, and are fitted to its codes by least
  squares, twice, which reduces the squared error by an eighth.
* ``int8_low``: codes -128 .. 127 with ``low``, for weights that are stored with more than 4 bits and an offset; nothing
  is rounded to it.

Scales are float16, as in GGUF files, so blocks of these types are kept exactly; see ``ggml``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch

GROUP = 32
HIGHEST = 15
"""The highest code of 4 bits."""
FITS = 2
"""The number of times that scale and offset are fitted; each gains less than the one before."""


@dataclass(frozen=True, slots=True)
class Quantized:
    """A weight [out, in] in codes; ``in`` is padded to whole groups with codes for 0."""

    codes: torch.Tensor
    """int8 (8 bits) or uint8 (4 bits, 0 .. 15) [out, groups * 32]."""
    scale: torch.Tensor
    """float16 [out, groups]."""
    low: torch.Tensor | None
    """float16 [out, groups]; None: no offset, which only 8 bits may lack."""

    @property
    def kind(self) -> Literal["int8", "int8_low", "int4"]:
        """The kind, by the number of bits."""
        if self.codes.dtype == torch.uint8:
            return "int4"
        return "int8" if self.low is None else "int8_low"

    def add_low(self) -> Quantized:
        """Return the same numbers as ``int8_low``."""
        low = torch.zeros_like(self.scale) if self.low is None else self.low
        return Quantized(self.codes.to(torch.int8), self.scale, low)

    def to_dense(self) -> torch.Tensor:
        """Return float32 [out, groups * 32]."""
        groups = self.codes.float().unflatten(1, (-1, GROUP)) * self.scale.float()[..., None]
        if self.low is not None:
            groups = groups + self.low.float()[..., None]
        return groups.flatten(1)


def quantize_weight(weight: torch.Tensor, kind: Literal["int8", "int4"]) -> Quantized:
    """Round a float weight [out, in] to codes; ``in`` is padded with zeros to a multiple of 32.

    This takes about twenty bytes of memory per weight: pass a few rows of a large weight at a time.
    """
    padded = torch.nn.functional.pad(weight.float(), (0, -weight.shape[1] % GROUP))
    groups = padded.unflatten(1, (-1, GROUP))
    return _quantize_bytes(groups) if kind == "int8" else _quantize_nibbles(groups)


def join_rows(parts: Sequence[Quantized]) -> Quantized:
    """Return weights of one kind as one weight, stacked by rows."""
    lows = [part.low for part in parts if part.low is not None]
    codes, scale = torch.cat([part.codes for part in parts]), torch.cat([part.scale for part in parts])
    return Quantized(codes, scale, torch.cat(lows) if lows else None)


def _quantize_bytes(groups: torch.Tensor) -> Quantized:
    scale = (groups.abs().amax(-1) / 127).half()
    codes = (groups * _invert(scale.float()[..., None])).round().clamp(-127, 127).to(torch.int8)
    return Quantized(codes.flatten(1), scale, None)


def _quantize_nibbles(groups: torch.Tensor) -> Quantized:
    low = groups.amin(-1, keepdim=True)
    scale = (groups.amax(-1, keepdim=True) - low) / HIGHEST
    for _ in range(FITS):
        scale, low = _fit_line(_round_codes(groups, scale, low), groups)
    scale, low = scale.half(), low.half()
    codes = _round_codes(groups, scale.float(), low.float()).to(torch.uint8)
    return Quantized(codes.flatten(1), scale[..., 0], low[..., 0])


def _round_codes(groups: torch.Tensor, scale: torch.Tensor, low: torch.Tensor) -> torch.Tensor:
    return ((groups - low) * _invert(scale)).round_().clamp_(0, HIGHEST)


def _fit_line(codes: torch.Tensor, groups: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the scale and offset that map each group's codes closest to its weights, by least squares."""
    centre = codes.mean(-1, keepdim=True)
    spread = codes - centre
    scale = (spread * groups).sum(-1, keepdim=True) / spread.square().sum(-1, keepdim=True).clamp_(min=1e-6)
    return scale, groups.mean(-1, keepdim=True) - scale * centre


def _invert(scale: torch.Tensor) -> torch.Tensor:
    """Return 1 / scale, or 0 if the scale is 0."""
    return torch.where(scale > 0, 1 / scale, 0)

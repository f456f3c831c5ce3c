"""Weights in few bits: codes of one byte, and a scale (and an offset) for each group of 32 along the inputs.

A weight is ``scale * code + low``. Three forms are known, all of them those of GGUF files:

* ``Q8_0``: codes -127 .. 127, no ``low``; ``scale`` is the largest magnitude / 127.
* ``Q4_0``: codes 0 .. 15, ``low`` is ``-8 * scale``.
* ``Q4_1``: codes 0 .. 15, ``low`` is the smallest weight, ``scale`` a fifteenth of the range.

``int8`` is written as Q8_0 and ``int4`` as Q4_1. Scales are float16, as in GGUF files, whose blocks are thus kept to
the bit.
Source of the layout of blocks: the description of GGML's quantised types in the GGUF specification.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from parallax_core.api import Unsupported

GROUP = 32
ROWS_AT_ONCE = 256
"""Rows of a weight that are rounded at once, which bounds the memory that takes."""
Form = Literal["Q4_0", "Q4_1", "Q8_0"]
BLOCK_BYTES: dict[Form, int] = {"Q4_0": 18, "Q4_1": 20, "Q8_0": 34}
"""Bytes of 32 weights in a GGUF file."""


@dataclass(frozen=True, slots=True)
class Quantized:
    """A weight [out, in] in codes; ``in`` is rounded up to whole groups, with codes that mean 0."""

    codes: torch.Tensor
    """int8 (8 bits) or uint8 (4 bits) [out, groups * 32]."""
    scale: torch.Tensor
    """float16 [out, groups]."""
    low: torch.Tensor | None
    """float16 [out, groups], or None for 8 bits."""

    def to_dense(self) -> torch.Tensor:
        """Return float32 [out, groups * 32]."""
        groups = self.codes.float().unflatten(1, (-1, GROUP)) * self.scale.float()[..., None]
        if self.low is not None:
            groups = groups + self.low.float()[..., None]
        return groups.flatten(1)


def quantize_weight(weight: torch.Tensor, bits: Literal[4, 8]) -> Quantized:
    """Round a float weight [out, in] to codes; ``in`` that is no multiple of 32 is padded with zeros."""
    starts = range(0, max(1, len(weight)), ROWS_AT_ONCE)
    parts = [_quantize_rows(weight[start : start + ROWS_AT_ONCE], bits) for start in starts]
    lows = [part.low for part in parts if part.low is not None]
    codes, scale = torch.cat([part.codes for part in parts]), torch.cat([part.scale for part in parts])
    return Quantized(codes, scale, torch.cat(lows) if lows else None)


def _quantize_rows(weight: torch.Tensor, bits: Literal[4, 8]) -> Quantized:
    padded = torch.nn.functional.pad(weight.float(), (0, -weight.shape[1] % GROUP))
    groups = padded.unflatten(1, (-1, GROUP))
    return _quantize_bytes(groups) if bits == 8 else _quantize_nibbles(groups)  # noqa: PLR2004 -- the two widths there are


def _quantize_bytes(groups: torch.Tensor) -> Quantized:
    scale = (groups.abs().amax(-1) / 127).half()
    codes = (groups * _invert(scale)).round().clamp(-127, 127).to(torch.int8)
    return Quantized(codes.flatten(1), scale, None)


def _quantize_nibbles(groups: torch.Tensor) -> Quantized:
    low = groups.amin(-1).half()
    scale = ((groups.amax(-1) - low.float()) / 15).half()
    codes = ((groups - low.float()[..., None]) * _invert(scale)).round().clamp(0, 15).to(torch.uint8)
    return Quantized(codes.flatten(1), scale, low)


def _invert(scale: torch.Tensor) -> torch.Tensor:
    """Return 1 / scale with a last dimension to multiply groups by; 0 where the scale is 0."""
    wide = scale.float()
    return torch.where(wide > 0, 1 / wide, 0)[..., None]


def read_blocks(blocks: torch.Tensor, form: Form) -> Quantized:
    """Take the weight apart that a GGUF file holds.

    Args:
        blocks: uint8 [out, bytes], the rows of the tensor as they are in the file; bytes = in / 32 * size of a block.
        form: the type of the tensor.

    Raises:
        Unsupported: a type not known here, or rows that are not whole blocks.
    """
    size = BLOCK_BYTES.get(form)
    if size is None:
        raise Unsupported(f"blocks of type {form} are not read here", "dequantise them, and pack the float weight")
    if blocks.shape[1] % size:
        raise Unsupported(f"a row of {blocks.shape[1]} bytes is not whole blocks of {size} bytes ({form})")
    split = blocks.unflatten(1, (-1, size))
    scale = split[..., :2].contiguous().view(torch.float16)[..., 0]
    if form == "Q8_0":
        return Quantized(split[..., 2:].contiguous().view(torch.int8).flatten(1), scale, None)
    low = scale * -8 if form == "Q4_0" else split[..., 2:4].contiguous().view(torch.float16)[..., 0]
    packed = split[..., size - GROUP // 2 :]
    return Quantized(torch.cat([packed & 15, packed >> 4], dim=-1).flatten(1), scale, low)

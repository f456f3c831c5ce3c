"""Reads the weights of GGUF files: rows of blocks, each with its own scales.

Supported types, each read to a `Quantized` of groups of 32:

* ``Q4_0``, ``Q4_1``: 4 bits, exactly. ``Q8_0``: 8 bits, exactly.
* ``Q4_K``: 256 weights of 4 bits with eight scales and offsets of 6 bits; their values are rounded to float16.
* ``Q6_K``: 256 weights of 6 bits with sixteen scales of 8 bits; rounded to 8 bits with eight scales.

Source of the layouts: the definitions of GGML's quantised types, to which the GGUF specification refers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import torch

from parallax_backend_torch.kernels.quantize import GROUP, Quantized, quantize_weight
from parallax_core.api import Unsupported

Form = Literal["Q4_0", "Q4_1", "Q8_0", "Q4_K", "Q6_K"]
FORMS: tuple[Form, ...] = get_args(Form)
SUPER = 256


@dataclass(frozen=True, slots=True)
class Layout:
    """The layout of a type of blocks."""

    weights: int
    """The number of weights in a block."""
    size: int
    """The bytes of a block."""
    kind: Literal["int8", "int4"]
    """The kind that the blocks are converted to."""


LAYOUTS: dict[Form, Layout] = {
    "Q4_0": Layout(GROUP, 18, "int4"),
    "Q4_1": Layout(GROUP, 20, "int4"),
    "Q8_0": Layout(GROUP, 34, "int8"),
    "Q4_K": Layout(SUPER, 144, "int4"),
    "Q6_K": Layout(SUPER, 210, "int8"),
}


def find_layout(form: str, row_bytes: int) -> Layout:
    """Return the layout of a type; ``row_bytes`` must be a multiple of its block size.

    Raises:
        Unsupported: an unknown type, or a row that is not whole blocks.
    """
    layout = next((LAYOUTS[each] for each in FORMS if each == form), None)
    if layout is None:
        raise Unsupported(f"blocks of type {form} are not read here", f"convert to one of: {', '.join(FORMS)}")
    if row_bytes % layout.size:
        raise Unsupported(
            f"a row of {row_bytes} bytes is not whole blocks of {layout.size} bytes ({form})", "fetch the model again"
        )
    return layout


def read_blocks(blocks: torch.Tensor, form: Form) -> Quantized:
    """Unpack a weight of a GGUF file into codes and scales.

    This takes about twenty bytes of memory per weight: pass a few rows of a large tensor at a time.

    Args:
        blocks: uint8 [out, bytes], the rows of the tensor as in the file.
        form: the type of the tensor.

    Raises:
        Unsupported: an unknown type, or rows that are not whole blocks.
    """
    layout = find_layout(form, blocks.shape[1])
    split = blocks.unflatten(1, (-1, layout.size))
    if form == "Q4_K":
        return _read_q4_k(split)
    if form == "Q6_K":
        return _read_q6_k(split)
    scale = _read_half(split, 0)
    if form == "Q8_0":
        return Quantized(split[..., 2:].contiguous().view(torch.int8).flatten(1), scale, None)
    low = scale * -8 if form == "Q4_0" else _read_half(split, 2)
    return Quantized(_split_nibbles(split[..., layout.size - GROUP // 2 :]).flatten(1), scale, low)


def _read_half(split: torch.Tensor, place: int) -> torch.Tensor:
    """Return the float16 number at the offset ``place`` of every block: [out, blocks]."""
    return split[..., place : place + 2].contiguous().view(torch.float16)[..., 0]


def _split_nibbles(packed: torch.Tensor) -> torch.Tensor:
    """Return the lower four bits of all bytes in the last dimension, followed by the upper four bits."""
    return torch.cat([packed & 15, packed >> 4], dim=-1)


def _read_q4_k(split: torch.Tensor) -> Quantized:
    """Read blocks: a scale of scales, a scale of offsets, 12 bytes of scales and offsets, and 128 bytes of codes."""
    low, middle, high = split[..., 4:16].split(4, dim=-1)
    scales = torch.cat([low & 63, (high & 15) | (low >> 6 << 4)], dim=-1)
    lows = torch.cat([middle & 63, (high >> 4) | (middle >> 6 << 4)], dim=-1)
    scale = _read_half(split, 0).float()[..., None] * scales
    offset = _read_half(split, 2).float()[..., None] * lows
    codes = _split_nibbles(split[..., 16:].unflatten(-1, (-1, GROUP)))
    return Quantized(codes.flatten(1), scale.half().flatten(1), -offset.half().flatten(1))


def _read_q6_k(split: torch.Tensor) -> Quantized:
    """Read blocks: 128 bytes of lower four bits, 64 of upper two bits, 16 of scales, and a scale of scales."""
    lower = split[..., :128].unflatten(-1, (2, 64))
    upper = split[..., 128:192].unflatten(-1, (2, 32))
    pairs = torch.cat([upper >> shift & 3 for shift in (0, 2, 4, 6)], dim=-1)
    codes = (_split_nibbles(lower) | pairs << 4).float() - 32
    scales = split[..., 192:208].contiguous().view(torch.int8) * _read_half(split, 208).float()[..., None]
    return quantize_weight((codes.flatten(2).unflatten(-1, (16, 16)) * scales[..., None]).flatten(1), "int8")

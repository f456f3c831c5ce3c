"""Reads the weights of GGUF files: rows of blocks, each with its own scales.

A type of blocks is a row of `LAYOUTS`, each read to a `Quantized` of groups of 32:

* ``Q4_0``, ``Q4_1``, ``Q5_0``, ``Q5_1``, ``Q8_0``, ``IQ4_NL``, ``MXFP4``: exactly; scales of MXFP4 below 2**-24 are 0.
* ``Q4_K``, ``Q5_K``, ``IQ4_XS``: 256 weights with eight scales that are products of two; these, and the offsets of the
  first two, are rounded to float16.
* ``Q6_K`` and all others, with scales for 16 weights or tables of eight: rounded to 8 bits with a scale for each 32.

Source of the layouts: the definitions of GGML's quantised types, to which the GGUF specification refers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch

from parallax_backend_torch.kernels.quantize import GROUP, Quantized, quantize_weight
from parallax_core.api import Unsupported

Form = str
"""The name of a type, a key of `LAYOUTS`."""
SUPER = 256
NONLINEAR = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
"""The numbers of the codes of IQ4_NL and IQ4_XS."""
DOUBLED = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)
"""Twice the numbers of the codes of MXFP4 (OCP Microscaling Formats 1.0, E2M1)."""
HALF_BIAS = 128
"""The bias of exponents of MXFP4, whose numbers are doubled."""


def read_half(split: torch.Tensor, place: int) -> torch.Tensor:
    """Return the float16 number at the offset ``place`` of every block: [out, blocks]."""
    return split[..., place : place + 2].contiguous().view(torch.float16)[..., 0]


def split_nibbles(packed: torch.Tensor) -> torch.Tensor:
    """Return the lower four bits of all bytes in the last dimension, followed by the upper four bits."""
    return torch.cat([packed & 15, packed >> 4], dim=-1)


def _read_q4_0(split: torch.Tensor) -> Quantized:
    scale = read_half(split, 0)
    return Quantized(split_nibbles(split[..., 2:]).flatten(1), scale, scale * -8)


def _read_q4_1(split: torch.Tensor) -> Quantized:
    return Quantized(split_nibbles(split[..., 4:]).flatten(1), read_half(split, 0), read_half(split, 2))


def _read_q5_0(split: torch.Tensor) -> Quantized:
    return Quantized((_read_five(split[..., 2:]) - 16).flatten(1), read_half(split, 0), None)


def _read_q5_1(split: torch.Tensor) -> Quantized:
    return Quantized(_read_five(split[..., 4:]).flatten(1), read_half(split, 0), read_half(split, 2))


def _read_five(packed: torch.Tensor) -> torch.Tensor:
    """Return codes of 5 bits: the fifth of each in the first 4 bytes, the others in the next 16."""
    fifth = packed[..., :4, None] >> torch.arange(8, dtype=torch.uint8) & 1
    return (split_nibbles(packed[..., 4:]) | fifth.flatten(-2) << 4).to(torch.int8)


def _read_q8_0(split: torch.Tensor) -> Quantized:
    return Quantized(split[..., 2:].contiguous().view(torch.int8).flatten(1), read_half(split, 0), None)


def _read_table(split: torch.Tensor, numbers: tuple[int, ...], scale: torch.Tensor) -> Quantized:
    """Return codes of 16 bytes at the end of each block or part of one, which are places in a table of numbers."""
    codes = torch.tensor(numbers, dtype=torch.int8)[split_nibbles(split[..., -GROUP // 2 :]).long()]
    return Quantized(codes.flatten(1), scale.flatten(1), None)


def _read_iq4_nl(split: torch.Tensor) -> Quantized:
    return _read_table(split, NONLINEAR, read_half(split, 0))


def _read_mxfp4(split: torch.Tensor) -> Quantized:
    return _read_table(split, DOUBLED, torch.exp2(split[..., 0].float() - HALF_BIAS).half())


def _read_iq4_xs(split: torch.Tensor) -> Quantized:
    """Read blocks: a scale of scales, 2 bytes with the upper two bits of scales, 4 with the lower four, and codes."""
    lower = torch.stack([split[..., 4:8] & 15, split[..., 4:8] >> 4], dim=-1).flatten(-2)
    upper = split[..., 2:4, None] >> torch.arange(0, 8, 2, dtype=torch.uint8) & 3
    scales = (lower | upper.flatten(-2) << 4).float() - 32
    scale = (read_half(split, 0).float()[..., None] * scales).half()
    return _read_table(split[..., 8:].unflatten(-1, (8, -1)), NONLINEAR, scale)


def _read_q4_k(split: torch.Tensor) -> Quantized:
    """Read blocks: scales and offsets, and 128 bytes of codes."""
    return Quantized(_read_lower(split[..., 16:]).flatten(1), *_read_pairs(split))


def _read_q5_k(split: torch.Tensor) -> Quantized:
    """Read blocks: scales and offsets, 32 bytes of the fifth bits of codes, and 128 of the lower four."""
    fifth = split[..., None, 16:48] >> torch.arange(8, dtype=torch.uint8)[:, None] & 1
    codes = _read_lower(split[..., 48:]) | fifth.flatten(-2) << 4
    return Quantized(codes.to(torch.int8).flatten(1), *_read_pairs(split))


def _read_lower(packed: torch.Tensor) -> torch.Tensor:
    """Return the codes of 4 bits of 128 bytes: of each 32 bytes first the lower halves."""
    return split_nibbles(packed.unflatten(-1, (-1, GROUP))).flatten(-2)


def _read_pairs(split: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return scales and offsets of blocks: a scale of scales, a scale of offsets, and 12 bytes of both."""
    low, middle, high = split[..., 4:16].split(4, dim=-1)
    scales = torch.cat([low & 63, (high & 15) | (low >> 6 << 4)], dim=-1)
    lows = torch.cat([middle & 63, (high >> 4) | (middle >> 6 << 4)], dim=-1)
    scale = read_half(split, 0).float()[..., None] * scales
    offset = read_half(split, 2).float()[..., None] * lows
    return scale.half().flatten(1), -offset.half().flatten(1)


def _read_q6_k(split: torch.Tensor) -> Quantized:
    """Read blocks: 128 bytes of lower four bits, 64 of upper two bits, 16 of scales, and a scale of scales."""
    lower = split[..., :128].unflatten(-1, (2, 64))
    upper = split[..., 128:192].unflatten(-1, (2, 32))
    pairs = torch.cat([upper >> shift & 3 for shift in (0, 2, 4, 6)], dim=-1)
    codes = (split_nibbles(lower) | pairs << 4).float() - 32
    scales = split[..., 192:208].contiguous().view(torch.int8) * read_half(split, 208).float()[..., None]
    return quantize_weight((codes.flatten(2).unflatten(-1, (16, 16)) * scales[..., None]).flatten(1), "int8")


def _round(split: torch.Tensor, form: Form) -> Quantized:
    """Read blocks of any type that the ``gguf`` package reads."""
    from parallax_formats.gguf import read_named  # it takes half a second to import

    return quantize_weight(torch.from_numpy(read_named(split.flatten(1).contiguous().numpy(), form)), "int8")


@dataclass(frozen=True, slots=True)
class Layout:
    """The layout of a type of blocks."""

    weights: int
    """The number of weights in a block."""
    size: int
    """The bytes of a block."""
    kind: Literal["int8", "int8_low", "int4"]
    """The kind that the blocks are converted to."""
    read: Callable[[torch.Tensor], Quantized]
    """Returns the codes of blocks: uint8 [out, blocks, size]."""


ROUNDED = {
    "Q2_K": 84,
    "Q3_K": 110,
    "IQ1_S": 50,
    "IQ1_M": 56,
    "IQ2_XXS": 66,
    "IQ2_XS": 74,
    "IQ2_S": 82,
    "IQ3_XXS": 98,
    "IQ3_S": 110,
    "TQ1_0": 54,
    "TQ2_0": 66,
}
"""The bytes of a block of 256 weights, of types that are rounded as the ``gguf`` package reads them."""
LAYOUTS: dict[Form, Layout] = {
    "Q4_0": Layout(GROUP, 18, "int4", _read_q4_0),
    "Q4_1": Layout(GROUP, 20, "int4", _read_q4_1),
    "Q5_0": Layout(GROUP, 22, "int8", _read_q5_0),
    "Q5_1": Layout(GROUP, 24, "int8_low", _read_q5_1),
    "Q8_0": Layout(GROUP, 34, "int8", _read_q8_0),
    "IQ4_NL": Layout(GROUP, 18, "int8", _read_iq4_nl),
    "MXFP4": Layout(GROUP, 17, "int8", _read_mxfp4),
    "Q4_K": Layout(SUPER, 144, "int4", _read_q4_k),
    "Q5_K": Layout(SUPER, 176, "int8_low", _read_q5_k),
    "Q6_K": Layout(SUPER, 210, "int8", _read_q6_k),
    "IQ4_XS": Layout(SUPER, 136, "int8", _read_iq4_xs),
    "NVFP4": Layout(64, 36, "int8", partial(_round, form="NVFP4")),
    **{form: Layout(SUPER, size, "int8", partial(_round, form=form)) for form, size in ROUNDED.items()},
}


def find_layout(form: str, row_bytes: int) -> Layout:
    """Return the layout of a type; ``row_bytes`` must be a multiple of its block size.

    Raises:
        Unsupported: an unknown type, or a row that is not whole blocks.
    """
    layout = LAYOUTS.get(form)
    if layout is None:
        raise Unsupported(f"blocks of type {form} are not read here", f"convert to one of: {', '.join(LAYOUTS)}")
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
        Unsupported: an unknown type, rows that are not whole blocks, or a scale that float16 does not hold.
    """
    layout = find_layout(form, blocks.shape[1])
    found = layout.read(blocks.unflatten(1, (-1, layout.size)))
    if not found.scale.isfinite().all():
        raise Unsupported(f"the scales of blocks of type {form} are too large for float16", "fetch the model again")
    return found

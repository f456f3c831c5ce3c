"""Matrix products of a few rows in Triton, fused with the norm, gate and sum beside them.

With a few rows, the time of a product is that of reading its matrix, and all else should happen meanwhile:

- A block of the matrix is multiplied by all rows. If there are too few blocks to fill the device, each is split along
  the inputs, and the program that ends last adds up the parts, always in the same order (split-K, as in Triton's
  tutorials and in Stream-K, arXiv 2301.03598).
- A norm is a factor for each input and one for each row. The product that computes the input of a norm also writes it
  times the first, and the sum of its squares for each block; the product behind the norm multiplies its results by the
  second.
- Programs of the next kernel begin while those of the last one end (programmatic dependent launch). They begin no
  earlier: where they took the place of programs yet to come, these were spread unevenly, and all took longer.
- A single row is multiplied without tensor cores, by programs that are small and many.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Protocol

import torch
import triton
import triton.language as tl
from triton.language.extra import cuda as device

from parallax_backend_torch.product_tiles import BLOCK, LEAST_ROWS, choose_tile, find_processors

MOST_ROWS = 32
"""The most rows: with more, reading them takes as long as reading the matrix, and PyTorch's products are faster."""
NEWEST = 9, 0
"""The first devices with programmatic dependent launch."""


class Factors(Protocol):
    """What a kernel needs of a norm; see `arithmetic.Norm`."""

    @property
    def weight(self) -> torch.Tensor:
        """float32 of shape [width]."""

    @property
    def eps(self) -> float:
        """Added to the mean square."""

    @property
    def offset(self) -> float:
        """Added to the weight."""


@dataclass(eq=False, slots=True)
class Stream:
    """Hidden states of a few rows, ready for a norm."""

    hidden: torch.Tensor
    """[rows, width]."""
    scaled: torch.Tensor
    """The hidden states times the factors of the norm."""
    squares: torch.Tensor
    """Sums of squares of the hidden states, float32 of shape [rows, parts of the width]."""
    eps: float


class Product:
    """A matrix that multiplies a few rows: at most `MOST_ROWS`. Its products must run one after the other.

    Args:
        weight: [out, in], contiguous, which `product_tiles.fits`.
        bias: [out], or None.
    """

    most_rows = MOST_ROWS

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self.weight, self.bias = weight, bias
        self.counters = torch.zeros(weight.shape[0] // BLOCK, dtype=torch.int32, device=weight.device)
        """The parts of each block that are there; zero before and after each product."""

    def apply(self, x: torch.Tensor | Stream, residual: torch.Tensor | None = None) -> torch.Tensor:
        """Return ``x @ weight.T + bias (+ residual)``, [rows, out].

        Args:
            x: [rows, in], contiguous; or a stream, whose norm is applied.
            residual: [rows, out], contiguous.
        """
        found = self._make(x, self.weight.shape[0])
        self._launch(x, (found, None), (residual, None))
        return found

    def apply_gated(self, x: torch.Tensor | Stream, gate: str) -> torch.Tensor:
        """Return the second half of the outputs times the gate of the first, [rows, out / 2]; see `apply`."""
        found = self._make(x, self.weight.shape[0] // 2)
        self._launch(x, (found, None), (None, None), gate)
        return found

    def extend(self, x: torch.Tensor, residual: torch.Tensor, norm: Factors) -> Stream:
        """Return ``residual + x @ weight.T + bias``, ready for a norm."""
        found = self._make(x, self.weight.shape[0])
        stream = Stream(found, torch.empty_like(found), found, norm.eps)
        self._launch(x, (found, stream), (residual, norm))
        return stream

    def _make(self, x: torch.Tensor | Stream, outputs: int) -> torch.Tensor:
        rows = x.hidden if isinstance(x, Stream) else x
        return rows.new_empty((rows.shape[0], outputs))

    def _launch(
        self,
        given: torch.Tensor | Stream,
        results: tuple[torch.Tensor, Stream | None],
        added: tuple[torch.Tensor | None, Factors | None],
        gate: str = "",
    ) -> None:
        (found, stream), (residual, norm), before = results, added, given if isinstance(given, Stream) else None
        x = given.scaled if isinstance(given, Stream) else given
        (rows, inputs), is_new = x.shape, overlaps(x.device)
        padded = 1 if rows == 1 else max(LEAST_ROWS, triton.next_power_of_2(rows))
        tile = choose_tile(self.weight.shape, padded, find_processors(x.device), bool(gate))
        blocks = self.weight.shape[0] // tile.outputs
        padded = max(padded, 1 if tile.is_row else LEAST_ROWS)
        shape = blocks, tile.splits, tile.outputs, padded
        parts = torch.empty(shape, dtype=torch.float32, device=x.device) if tile.splits > 1 else found
        scales = before.squares.shape[1] if before else 0
        if stream:
            stream.squares = torch.empty((rows, blocks), dtype=torch.float32, device=x.device)
        with torch.cuda.device_of(x):
            _multiply[(blocks, tile.splits)](
                *(x, self.weight, self.weight if self.bias is None else self.bias),
                *(before.squares if before else found, found if residual is None else residual.contiguous()),
                *(norm.weight if norm else found, found, stream.scaled if stream else found),
                *(stream.squares if stream else found, parts, self.counters),
                *(rows, found.shape[1], inputs, scales),
                *(before.eps if before else 0.0, norm.offset if norm else 0.0),
                *(padded, triton.next_power_of_2(max(scales, 1)), tile.outputs, tile.inputs, tile.splits),
                *(self.bias is not None, before is not None, bool(gate), gate == "gelu_tanh"),
                *(residual is not None, norm is not None, tile.is_row, is_new, tile.num_stages),
                num_warps=4,
                launch_pdl=is_new,
            )


def begin_stream(hidden: torch.Tensor, norm: Factors) -> Stream:
    """Return a few rows of hidden states, [rows, width], ready for a norm."""
    rows, width = hidden.shape
    squares = torch.empty((rows, width // BLOCK), dtype=torch.float32, device=hidden.device)
    stream = Stream(hidden, torch.empty_like(hidden), squares, norm.eps)
    with torch.cuda.device_of(hidden):
        _begin[(width // BLOCK,)](
            *(hidden, norm.weight, stream.scaled, squares, rows, width, norm.offset, MOST_ROWS, BLOCK)
        )
    return stream


@cache
def overlaps(where: torch.device) -> bool:
    """Return whether a kernel on a device may begin before the last one has ended."""
    return bool(torch.cuda.get_device_capability(where) >= NEWEST)


@triton.jit(do_not_specialize=["rows", "scales"])
def _multiply(
    x: tl.tensor,
    weight: tl.tensor,
    bias: tl.tensor,
    before: tl.tensor,
    residual: tl.tensor,
    factors: tl.tensor,
    found: tl.tensor,
    scaled: tl.tensor,
    squares: tl.tensor,
    parts: tl.tensor,
    counters: tl.tensor,
    rows: tl.tensor,
    outputs: tl.tensor,
    inputs: tl.tensor,
    scales: tl.tensor,
    eps: tl.tensor,
    offset: tl.tensor,
    ROWS: tl.constexpr,
    SCALES: tl.constexpr,
    BLOCK_OUT: tl.constexpr,
    BLOCK_IN: tl.constexpr,
    SPLITS: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    IS_SCALED: tl.constexpr,
    GATE: tl.constexpr,
    IS_GELU: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr,
    HAS_NORM: tl.constexpr,
    IS_ROW: tl.constexpr,
    IS_NEW: tl.constexpr,
    STAGES: tl.constexpr,
) -> None:
    block, part = tl.program_id(0), tl.program_id(1)
    lane, row, step = tl.arange(0, BLOCK_OUT), tl.arange(0, ROWS), tl.arange(0, BLOCK_IN)
    line = block * BLOCK_OUT + lane
    if GATE:  # half of the lines are gates, the others what they gate
        HALF: tl.constexpr = BLOCK_OUT // 2
        line = block * HALF + lane % HALF + (lane // HALF) * outputs
    size = tl.multiple_of(inputs // SPLITS, BLOCK_IN)
    begin = part * size
    weights = weight + line.to(tl.int64)[:, None] * inputs + begin + step[None, :]
    matrix = tl.zeros([BLOCK_OUT, BLOCK_IN], weight.dtype.element_ty)
    if IS_ROW:
        matrix = tl.load(weights)
    if HAS_BIAS:
        added = tl.load(bias + line).to(tl.float32)[:, None]
    if HAS_NORM:
        factor = tl.load(factors + line)[:, None] + offset
    if IS_NEW:  # only parameters of the model were read until here
        device.gdc_wait()
    # What the end of the program needs is read before the loop, so that it is there.
    is_row = (row < rows)[None, :]
    target = row[None, :] * outputs + line[:, None]
    if IS_SCALED:
        number = tl.arange(0, SCALES)
        is_sum = (number < scales)[:, None] & is_row
        sums = tl.load(before + row[None, :] * scales + number[:, None], mask=is_sum, other=0.0)
        scale = tl.rsqrt(tl.sum(sums, 0) / inputs + eps)[None, :]
    if HAS_RESIDUAL:
        kept = tl.load(residual + target, mask=is_row, other=0.0).to(tl.float32)
    if IS_ROW:
        products = tl.zeros([BLOCK_OUT, BLOCK_IN], tl.float32)
        for at in range(0, size, BLOCK_IN):
            products += matrix.to(tl.float32) * tl.load(x + at + step).to(tl.float32)[None, :]
            is_there = (lane >= 0)[:, None] & (at + BLOCK_IN < size)
            matrix = tl.load(weights + at + BLOCK_IN, mask=is_there, other=0.0)
        total = tl.sum(products, 1)[:, None]
    else:
        numbers = x + row[None, :] * inputs + begin + step[:, None]
        total = tl.zeros([BLOCK_OUT, ROWS], tl.float32)
        for at in tl.range(0, size, BLOCK_IN, num_stages=STAGES):
            total = tl.dot(tl.load(weights + at), tl.load(numbers + at, mask=is_row, other=0.0), total)
    if IS_NEW:
        device.gdc_launch_dependents()
    is_last = True
    if SPLITS > 1:
        places = parts + block.to(tl.int64) * SPLITS * BLOCK_OUT * ROWS + lane[:, None] * ROWS + row[None, :]
        tl.store(places + part * BLOCK_OUT * ROWS, total)
        tl.debug_barrier()
        is_last = tl.atomic_add(counters + block, 1, sem="acq_rel") == SPLITS - 1
    if is_last:
        if SPLITS > 1:
            tl.store(counters + block, 0)
            total = tl.zeros([BLOCK_OUT, ROWS], tl.float32)
            for each in tl.static_range(SPLITS):
                total += tl.load(places + each * BLOCK_OUT * ROWS, cache_modifier=".cg")
        if IS_SCALED:
            total = total * scale
        if HAS_BIAS:
            total += added
        if GATE:
            gates, gated = total.reshape(2, BLOCK_OUT // 2, ROWS).permute(1, 2, 0).split()
            bent = gates
            if IS_GELU:  # gelu_tanh: (1 + tanh(z)) / 2 is the sigmoid of 2 z
                bent = 1.5957691216057308 * (gates + 0.044715 * gates * gates * gates)
            column = block * (BLOCK_OUT // 2) + tl.arange(0, BLOCK_OUT // 2)
            result = gates * tl.sigmoid(bent) * gated
            tl.store(found + row[None, :] * outputs + column[:, None], result.to(found.dtype.element_ty), mask=is_row)
        else:
            if HAS_RESIDUAL:
                total += kept
            rounded = total.to(found.dtype.element_ty)
            tl.store(found + target, rounded, mask=is_row)
            if HAS_NORM:
                wide = rounded.to(tl.float32)
                tl.store(scaled + target, (wide * factor).to(found.dtype.element_ty), mask=is_row)
                tl.store(squares + row * tl.num_programs(0) + block, tl.sum(wide * wide, 0), mask=row < rows)


@triton.jit(do_not_specialize=["rows"])
def _begin(
    hidden: tl.tensor,
    factors: tl.tensor,
    scaled: tl.tensor,
    squares: tl.tensor,
    rows: tl.tensor,
    width: tl.tensor,
    offset: tl.tensor,
    MOST: tl.constexpr,
    BLOCK_OUT: tl.constexpr,
) -> None:
    block = tl.program_id(0)
    column, row = block * BLOCK_OUT + tl.arange(0, BLOCK_OUT), tl.arange(0, MOST)
    is_row = (row < rows)[:, None]
    target = row[:, None] * width + column[None, :]
    wide = tl.load(hidden + target, mask=is_row, other=0.0).to(tl.float32)
    factor = tl.load(factors + column) + offset
    tl.store(scaled + target, (wide * factor[None, :]).to(scaled.dtype.element_ty), mask=is_row)
    tl.store(squares + row * tl.num_programs(0) + block, tl.sum(wide * wide, 1), mask=row < rows)

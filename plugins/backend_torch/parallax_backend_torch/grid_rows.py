"""Rows of weights whose codes the kernels multiply with, read from the tensors that are stored."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from parallax_backend_torch.kernels.quantize import GROUP, Quantized
from parallax_backend_torch.kernels.rows import WeightKind
from parallax_core.api import Unsupported
from parallax_formats import Grid, Matrix

NIBBLE, BYTE = 4, 8
"""The bits of a code of int4, and of int8_low."""


@dataclass(frozen=True, slots=True)
class GridRows:
    """`Rows` of a weight that is stored as several tensors, as codes; scales and offsets are rounded to float16."""

    matrix: Matrix

    @property
    def shape(self) -> tuple[int, int]:
        """Outputs and inputs."""
        return self.matrix.num_rows, self.matrix.shape[-1]

    def read(self, start: int, stop: int) -> Quantized:
        """Return some of the rows.

        Raises:
            Unsupported: if float16 does not hold a scale or an offset.
        """
        grid, found = self.matrix.grid, self.matrix.read_codes(start, stop)
        assert grid is not None, "it has products"
        middle = 0 if grid.bits <= NIBBLE else 1 << grid.bits - 1  # as codes of a byte have signs
        scale, low = (
            torch.from_numpy(each).half().repeat_interleave(grid.group // GROUP, 1)
            for each in (found.scales.copy(), found.lows + middle * found.scales)
        )
        if not (scale.isfinite().all() and low.isfinite().all()):
            what = f"the scales of {self.matrix.parts.stem} are too large for float16"
            raise Unsupported(what, "compute with floats: --dtype float32")
        codes = torch.from_numpy(found.codes)
        if not middle:
            return Quantized(codes, scale, low)
        return Quantized((codes - middle).view(torch.int8), scale, low if grid.has_low else None)


def find_product(grid: Grid | None) -> WeightKind | None:
    """Return the kind of weights that codes are; None: they are no steps of a scale, or not in groups of whole 32."""
    if grid is None or grid.bits > BYTE or grid.group <= 0 or grid.group % GROUP:
        return None
    if grid.bits <= NIBBLE:
        return "int4"
    return "int8_low" if grid.has_low else "int8"

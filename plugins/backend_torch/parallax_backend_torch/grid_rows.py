"""Rows of weights whose codes the kernels multiply with, read from the tensors that are stored."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from parallax_backend_torch.kernels.quantize import GROUP, Quantized
from parallax_core.api import Unsupported
from parallax_formats import Grid, Matrix

CODE_BITS = 4
"""The bits of a code of int4."""


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
        scale, low = (
            torch.from_numpy(each).half().repeat_interleave(grid.group // GROUP, 1)
            for each in (found.scales.copy(), found.lows.copy())
        )
        if not (scale.isfinite().all() and low.isfinite().all()):
            what = f"the scales of {self.matrix.parts.stem} are too large for float16"
            raise Unsupported(what, "compute with floats: --dtype float32")
        return Quantized(torch.from_numpy(found.codes), scale, low)


def has_products(grid: Grid | None) -> bool:
    """Return whether the kernels multiply with codes of such a form: of at most 4 bits in groups of whole 32."""
    return grid is not None and grid.bits <= CODE_BITS and grid.group > 0 and grid.group % GROUP == 0

"""Weights of 8 bits with scales: FP8 as a whole, by rows or in blocks, and int8 by rows or groups.

Sources: the checkpoints of DeepSeek-V3 (blocks of 128 x 128, ``weight_scale_inv``) and V4 (``scale``, in E8M0), and
compressed-tensors (``float-quantized``, ``int-quantized``, ``naive-quantized``). Both scales multiply the codes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from parallax_core.api import ParallaxError, Tensor
from parallax_formats.matrix import MATRIX, Codes, Grid, Matrix, Parts
from parallax_formats.numbers import E8M0, Floats, view_array, widen

CODES = ("float8_e4m3fn", "float8_e5m2", "int8")
CODE_BITS, MIDDLE = 8, 128


def step_integers(plain: Grid, words: Mapping[str, str]) -> Grid | None:
    """Return the form of codes by the dtypes of a weight's tensors; None: they are floats, or have zeros."""
    is_plain = words["weight"] == "int8" and "weight_zero_point" not in words
    return Grid(CODE_BITS, plain.group, has_low=False) if is_plain else None


@dataclass(frozen=True, slots=True)
class Scaled(Matrix):
    r"""Codes ``weight`` [\*, out, in], and a scale for all, for each row, or for each block of them."""

    scale: str = "weight_scale"
    """The word of the scales: of one number, of shape [\\*, out], or [\\*, rows of blocks, columns of blocks]."""
    block: tuple[int, int] = (0, 0)
    """Rows and columns of a block; 0: found from the number of scales, which then must divide the size."""
    zeros: str = "weight_zero_point"
    """The word of what is taken from codes of int8 first, of the shape of the scales; it may be absent."""

    def __post_init__(self) -> None:
        codes, shape = self.parts.tensors["weight"], self.parts.shape("weight")
        self.parts.require_matrices("codes of 8 bits with a scale", "weight")
        self.parts.require(codes.dtype in CODES, "codes of 8 bits with a scale")
        object.__setattr__(self, "shape", shape)
        scales = self._shape_scales()
        zeros = self.parts.tensors.get(self.zeros)
        self.parts.require(not zeros or zeros.shape == self.parts.shape(self.scale), "codes with a zero for each scale")
        fits = len(scales) == MATRIX and all(
            0 < count <= size and (-(-size // step) == count if step else size % count == 0)
            for size, count, step in zip(shape[-2:], scales, self._steps(scales), strict=True)
        )
        self.parts.require(fits, "codes of 8 bits with a scale for each block")

    def _shape_scales(self) -> tuple[int, ...]:
        """Return the rows and columns of scales of one matrix."""
        shape, rows = self.parts.shape(self.scale), self.shape[-2]
        if int(np.prod(shape)) == 1:
            return 1, 1
        if shape == self.shape[:-1]:
            return rows, 1
        return shape[-2:] if shape[:-2] == self.shape[:-2] else ()

    def _steps(self, scales: tuple[int, ...]) -> tuple[int, int]:
        """Return the rows and columns of a block; 0: whatever divides the size."""
        has_blocks = min(self.block) > 0 and scales == tuple(
            -(-size // step) for size, step in zip(self.shape[-2:], self.block, strict=True)
        )
        return self.block if has_blocks else (0, 0)

    @property
    def grid(self) -> Grid | None:
        """See `Matrix.grid`."""
        rows, columns = self._shape_scales()
        words = {word: tensor.dtype for word, tensor in self.parts.tensors.items()}
        has_rows = rows in {1, self.shape[-2]} and len(self.shape) == MATRIX and self.shape[-1] % columns == 0
        return step_integers(Grid(CODE_BITS, self.shape[-1] // columns), words) if has_rows else None

    def read_codes(self, start: int, stop: int) -> Codes:
        """See `Matrix.read_codes`."""
        codes = view_array(self.parts.tensors["weight"])[start:stop]
        scales = self.parts.widen(self.scale).reshape(self._shape_scales())
        scales = np.broadcast_to(scales, (self.shape[0], scales.shape[1]))[start:stop]
        return Codes(codes.view(np.uint8) ^ np.uint8(MIDDLE), scales, -MIDDLE * scales)

    def read(self, start: int, stop: int) -> Floats:
        """See `Matrix.read`."""
        codes, made = self.parts.tensors["weight"], []
        for place, low, high in self._split(start, stop):
            values = widen(codes.dtype, view_array(codes)[place][low:high])
            if self.zeros in self.parts.tensors:
                values = values - self._spread(self.zeros, place, low, high)
            made.append(values * self._spread(self.scale, place, low, high))
        return np.concatenate(made) if len(made) != 1 else made[0]

    def _spread(self, word: str, place: tuple[int, ...], low: int, high: int) -> Floats:
        """Return the scale or zero of each number of some rows; of one column if there is one for a row."""
        counts, stored = self._shape_scales(), self.parts.view(word)
        one = (stored if stored.size == 1 else stored[place]).reshape(counts)
        rows, columns = (
            step or size // count
            for step, size, count in zip(self._steps(counts), self.shape[-2:], counts, strict=True)
        )
        dtype, part = self.parts.tensors[word].dtype, one[np.arange(low, high) // rows]
        is_exponent = word == self.scale and dtype == "uint8"  # as MXFP8 has them
        found = E8M0[part] if is_exponent else widen(dtype, part)
        return found if counts[1] == 1 else np.repeat(found, columns, axis=1)[:, : self.shape[-1]]


def read_scaled(parts: Parts, block: tuple[int, int] = (0, 0)) -> Scaled:
    """Return a weight of 8 bits.

    Raises:
        ParallaxError: if its tensors do not fit each other.
    """
    scale = next((word for word in ("weight_scale_inv", "scale") if word in parts.tensors), "weight_scale")
    return Scaled(parts, scale, block)


def check_left(tensors: Mapping[str, Tensor], found: Mapping[str, Matrix]) -> None:
    """Raise ParallaxError if a tensor of no weight has a dtype that only quantised weights have."""
    taken = {name for matrix in found.values() for name in matrix.names}
    for name in sorted(tensors.keys() - taken):
        if tensors[name].dtype in {*CODES, "uint32"}:
            message = f"the tensor {name} is {tensors[name].dtype}, and the scales that it needs are missing"
            raise ParallaxError(message, "fetch the model again, or choose another backend")

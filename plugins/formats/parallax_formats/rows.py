"""Weights of few bits, stored [out, in] with scales for groups of inputs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from parallax_formats.matrix import MATRIX, Codes, Grid, Matrix
from parallax_formats.numbers import (
    E2M1,
    E2M1_STEPS,
    E4M3,
    E8M0,
    WORD_BITS,
    Array,
    Floats,
    split_nibbles,
    unpack,
    unpack_between,
    view_array,
    widen,
)

PER_BYTE = 2
FLOAT_BITS, STEP_BITS = 4, 5
"""The bits of E2M1, and of its numbers as steps of a half."""
AFFINE_BITS = (2, 3, 4, 5, 6, 8)


def step_floats(plain: Grid) -> Grid | None:
    """Return the form of floats of 4 bits as steps of a half; None: of other bits, which are no even steps."""
    return Grid(STEP_BITS, plain.group, has_low=False) if plain.bits == FLOAT_BITS else None


@dataclass(frozen=True, slots=True)
class Affine(Matrix):
    r"""Words ``weight`` [\*, out, in * bits / 32], ``scales`` and ``biases`` [\*, out, groups], of mlx-lm.

    A weight is scale * code + bias (mlx.core.quantize). The bits follow from the shapes and the size of a group.
    """

    group: int = 64

    def __post_init__(self) -> None:
        self.parts.require_matrices("words with scales and biases", "weight", "scales")
        words, scales, biases = map(self.parts.shape, ("weight", "scales", "biases"))
        self.parts.require(scales == biases and words[:-1] == scales[:-1], "words with scales and biases")
        object.__setattr__(self, "shape", (*words[:-1], scales[-1] * self.group))
        is_even = words[-1] * WORD_BITS % self.shape[-1] == 0
        self.parts.require(is_even and self.bits in AFFINE_BITS, f"of {AFFINE_BITS} bits in groups of {self.group}")

    @property
    def bits(self) -> int:
        """The bits of a code."""
        return self.parts.shape("weight")[-1] * WORD_BITS // self.shape[-1]

    @property
    def grid(self) -> Grid:
        """See `Matrix.grid`."""
        return Grid(self.bits, self.group)

    def read_codes(self, start: int, stop: int) -> Codes:
        """See `Matrix.read_codes`."""
        words, scales, biases = (self._rows(word, start, stop) for word in ("weight", "scales", "biases"))
        return Codes(unpack(words, self.bits, self.shape[-1]).astype(np.uint8), scales, biases)

    def read(self, start: int, stop: int) -> Floats:
        """See `Matrix.read`."""
        found = self.read_codes(start, stop)
        codes = found.codes.astype(np.float32).reshape(len(found.codes), -1, self.group)
        return (codes * found.scales[..., None] + found.lows[..., None]).reshape(len(codes), -1)

    def _rows(self, word: str, start: int, stop: int) -> Array:
        values = self.parts.view(word)
        part = np.ascontiguousarray(values.reshape(-1, values.shape[-1])[start:stop])
        return part if word == "weight" else widen(self.parts.tensors[word].dtype, part)


@dataclass(frozen=True, slots=True)
class MicroScaled(Matrix):
    r"""Words ``weight`` [\*, out, words] of E2M1 or E4M3 numbers, and a byte of ``scales`` for each group, of mlx-lm.

    ``mxfp4`` and ``mxfp8`` have groups of 32 with scales in E8M0 (OCP Microscaling Formats 1.0), ``nvfp4`` groups of
    16 with scales in E4M3.
    """

    mode: str = "mxfp4"

    def __post_init__(self) -> None:
        self.parts.require_matrices(f"numbers of {self.mode}", "weight", "scales")
        words, scales = map(self.parts.shape, ("weight", "scales"))
        fits = self.parts.tensors["scales"].dtype == "uint8" and words[:-1] == scales[:-1]
        object.__setattr__(self, "shape", (*words[:-1], scales[-1] * self._group))
        self.parts.require(fits and words[-1] * WORD_BITS == self.shape[-1] * self._bits, f"numbers of {self.mode}")

    @property
    def _group(self) -> int:
        return 16 if self.mode == "nvfp4" else 32

    @property
    def _bits(self) -> int:
        return 8 if self.mode == "mxfp8" else 4

    @property
    def grid(self) -> Grid | None:
        """See `Matrix.grid`."""
        return step_floats(Grid(self._bits, self._group))

    def read(self, start: int, stop: int) -> Floats:
        """See `Matrix.read`."""
        codes, sizes = self._unpack(start, stop)
        numbers = (E4M3 if self.mode == "mxfp8" else E2M1)[codes].reshape(len(codes), -1, self._group)
        return (numbers * sizes[..., None]).reshape(len(codes), -1)

    def read_codes(self, start: int, stop: int) -> Codes:
        """See `Matrix.read_codes`."""
        codes, sizes = self._unpack(start, stop)
        return Codes(E2M1_STEPS[codes], sizes * np.float32(0.5), -8 * sizes)

    def _unpack(self, start: int, stop: int) -> tuple[Array, Floats]:
        words, scales = (self.parts.view(word).reshape(self.num_rows, -1)[start:stop] for word in ("weight", "scales"))
        codes = unpack(np.ascontiguousarray(words), self._bits, self.shape[-1])
        return codes, (E4M3 if self.mode == "nvfp4" else E8M0)[scales]


@dataclass(frozen=True, slots=True)
class PackedIntegers(Matrix):
    """Words ``weight_packed`` [out, in * bits / 32] and ``weight_scale`` [out, groups], of compressed-tensors.

    Codes are stored with 2**(bits - 1) added, one after another. ``weight_zero_point`` [out * bits / 32, groups] holds
    zeros, packed along the rows, and ``weight_g_idx`` [in] the group of each input. ``weight_shape`` is [out, in].
    """

    bits: int = 4

    def __post_init__(self) -> None:
        self.parts.require_matrices("packed codes", "weight_packed", "weight_scale")
        words, scales = map(self.parts.shape, ("weight_packed", "weight_scale"))
        told = [int(size) for size in self.parts.view("weight_shape").reshape(-1)]
        fits = len(words) == len(scales) == len(told) == MATRIX and told[0] == words[0] == scales[0]
        fits = fits and -(-told[1] * self.bits // WORD_BITS) == words[1] and scales[1] <= told[1]
        order, zeros = (self.parts.tensors.get(word) for word in ("weight_g_idx", "weight_zero_point"))
        fits = fits and (order.shape == (told[1],) if order else told[1] % scales[1] == 0)
        fits = fits and (not zeros or zeros.shape == (-(-told[0] * self.bits // WORD_BITS), scales[1]))
        self.parts.require(fits, f"{self.bits} bits of compressed-tensors, packed")
        object.__setattr__(self, "shape", tuple(told))
        groups = self._find_groups()
        self.parts.require(groups.min() >= 0 and groups.max() < scales[1], "packed codes with a scale for each group")

    def read(self, start: int, stop: int) -> Floats:
        """See `Matrix.read`."""
        codes = unpack(self.parts.view("weight_packed")[start:stop], self.bits, self.shape[1]).astype(np.float32)
        groups, scales = self._find_groups(), self.parts.widen("weight_scale", slice(start, stop))
        return (codes - self._read_zeros(start, stop)[:, groups]) * scales[:, groups]

    @property
    def grid(self) -> Grid | None:
        """See `Matrix.grid`."""
        groups = self.parts.shape("weight_scale")[1]
        return None if "weight_g_idx" in self.parts.tensors else Grid(self.bits, self.shape[1] // groups)

    def read_codes(self, start: int, stop: int) -> Codes:
        """See `Matrix.read_codes`."""
        codes = unpack(self.parts.view("weight_packed")[start:stop], self.bits, self.shape[1]).astype(np.uint8)
        scales = self.parts.widen("weight_scale", slice(start, stop))
        return Codes(codes, scales, -self._read_zeros(start, stop) * scales)

    def _read_zeros(self, start: int, stop: int) -> Floats:
        if "weight_zero_point" in self.parts.tensors:
            packed = self.parts.view("weight_zero_point").T
            return unpack_between(packed, self.bits, start, stop).T.astype(np.float32)
        return np.full((stop - start, self.parts.shape("weight_scale")[1]), 2 ** (self.bits - 1), np.float32)

    def _find_groups(self) -> Array:
        if "weight_g_idx" in self.parts.tensors:
            return self.parts.view("weight_g_idx")
        return np.arange(self.shape[1]) // (self.shape[1] // self.parts.shape("weight_scale")[1])


@dataclass(frozen=True, slots=True)
class PackedFloats(Matrix):
    """Bytes of two E2M1 numbers [out, in / 2], the first in the lower half, with a scale for each group of inputs.

    NVFP4 has scales in E4M3 for groups of 16 and one for all: compressed-tensors divides by ``weight_global_scale``,
    ModelOpt multiplies by ``weight_scale_2``. MXFP4 has scales in E8M0 for groups of 32, stored as bytes;
    DeepSeek-V4 calls them ``weight`` and ``scale``.
    """

    codes: str = "weight_packed"
    scale: str = "weight_scale"
    """The word of the scales."""

    def __post_init__(self) -> None:
        self.parts.require_matrices("numbers of 4 bits with scales", self.codes, self.scale)
        packed, scales = map(self.parts.shape, (self.codes, self.scale))
        codes, sizes = (self.parts.tensors[word].dtype for word in (self.codes, self.scale))
        fits = len(packed) == len(scales) == MATRIX and packed[0] == scales[0]
        fits = fits and packed[1] * PER_BYTE % scales[1] == 0 and sizes in {"uint8", "float8_e4m3fn", "float8_e8m0fnu"}
        self.parts.require(fits and codes in {"uint8", "int8"}, "numbers of 4 bits with scales")
        object.__setattr__(self, "shape", (packed[0], packed[1] * PER_BYTE))

    @property
    def grid(self) -> Grid | None:
        """See `Matrix.grid`."""
        return step_floats(Grid(FLOAT_BITS, self.shape[1] // self.parts.shape(self.scale)[1]))

    def read(self, start: int, stop: int) -> Floats:
        """See `Matrix.read`."""
        codes, sizes = self._unpack(start, stop)
        return (E2M1[codes].reshape(*sizes.shape, -1) * sizes[..., None]).reshape(len(codes), -1)

    def read_codes(self, start: int, stop: int) -> Codes:
        """See `Matrix.read_codes`."""
        codes, sizes = self._unpack(start, stop)
        return Codes(E2M1_STEPS[codes], sizes * np.float32(0.5), -8 * sizes)

    def _unpack(self, start: int, stop: int) -> tuple[Array, Floats]:
        scales = self.parts.tensors[self.scale]
        table = E4M3 if scales.dtype == "float8_e4m3fn" else E8M0
        sizes = self._size_all(table[view_array(scales)[start:stop]])
        return split_nibbles(self.parts.view(self.codes)[start:stop].view(np.uint8)), sizes

    def _size_all(self, sizes: Floats) -> Floats:
        if "weight_scale_2" in self.parts.tensors:
            return np.multiply(sizes, self.parts.widen("weight_scale_2").reshape(-1)[:1])
        if "weight_global_scale" in self.parts.tensors:
            return np.divide(sizes, self.parts.widen("weight_global_scale").reshape(-1)[:1])
        return sizes

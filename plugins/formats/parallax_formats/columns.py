"""Weights of AWQ and GPTQ: stored [in, out], with scales and zeros for groups of inputs.

Sources: AutoAWQ (``WQLinear_GEMM``) and AutoGPTQ (``QuantLinear``), whose layouts other tools write as well.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from parallax_formats.matrix import MATRIX, Codes, Grid, Matrix
from parallax_formats.numbers import WORD_BITS, Array, Floats, unpack, unpack_between

AWQ_BITS = 4
AWQ_WORD = 8
"""The outputs in one word."""
AWQ_ORDER = (0, 4, 1, 5, 2, 6, 3, 7)
"""Which four bits of a word belong to each of its outputs."""
COLUMNS = ("qweight", "qzeros", "scales")


@dataclass(frozen=True, slots=True)
class Awq(Matrix):
    """Words ``qweight`` [in, out / 8] and ``qzeros`` [groups, out / 8], ``scales`` [groups, out]."""

    def __post_init__(self) -> None:
        self.parts.require_matrices("4 bits of AWQ", *COLUMNS)
        self.parts.require_integers("words of AWQ", "qweight", "qzeros")
        words, zeros, scales = map(self.parts.shape, COLUMNS)
        fits = len(words) == len(zeros) == len(scales) == MATRIX and scales[0] <= words[0]
        fits = fits and words[0] % scales[0] == 0 and scales[1] == words[1] * AWQ_WORD and zeros[0] == scales[0]
        self.parts.require(fits and zeros[1] == words[1], "4 bits of AWQ in the layout `gemm`")
        object.__setattr__(self, "shape", (scales[1], words[0]))

    def read(self, start: int, stop: int) -> Floats:
        """See `Matrix.read`."""
        first, end = start // AWQ_WORD, -(-stop // AWQ_WORD)
        codes, zeros = (self._unpack(word, first, end) for word in ("qweight", "qzeros"))
        scales = self.parts.widen("scales", (slice(None), slice(first * AWQ_WORD, end * AWQ_WORD)))
        group = self.shape[1] // len(scales)
        found = (codes - np.repeat(zeros, group, axis=0)) * np.repeat(scales, group, axis=0)
        return np.ascontiguousarray(found[:, start - first * AWQ_WORD : stop - first * AWQ_WORD].T)

    @property
    def grid(self) -> Grid:
        """See `Matrix.grid`."""
        return Grid(AWQ_BITS, self.shape[1] // self.parts.shape("scales")[0])

    def read_codes(self, start: int, stop: int) -> Codes:
        """See `Matrix.read_codes`."""
        first, end = start // AWQ_WORD, -(-stop // AWQ_WORD)
        part = slice(start - first * AWQ_WORD, stop - first * AWQ_WORD)
        codes, zeros = (self._unpack(word, first, end)[:, part].T for word in ("qweight", "qzeros"))
        scales = self.parts.widen("scales", (slice(None), slice(start, stop))).T
        return Codes(np.ascontiguousarray(codes.astype(np.uint8)), scales, -zeros * scales)

    def _unpack(self, word: str, first: int, end: int) -> Floats:
        words = self.parts.view(word)[:, first:end]
        codes = unpack(np.ascontiguousarray(words), AWQ_BITS, words.shape[1] * AWQ_WORD)
        return codes.reshape(len(words), -1, AWQ_WORD)[..., AWQ_ORDER].reshape(len(words), -1).astype(np.float32)


@dataclass(frozen=True, slots=True)
class Gptq(Matrix):
    """Words ``qweight`` [in * bits / 32, out] and ``qzeros`` [groups, out * bits / 32], ``scales`` [groups, out].

    ``g_idx`` [in] has the group of each input; without it, groups follow one another.
    """

    bits: int = 4
    adds_one: bool = True
    """Whether a zero is stored less one, as in all but the second version of the format."""

    def __post_init__(self) -> None:
        self.parts.require_matrices(f"{self.bits} bits of GPTQ", *COLUMNS)
        self.parts.require_integers("words of GPTQ", "qweight", "qzeros", "g_idx")
        words, zeros, scales = map(self.parts.shape, COLUMNS)
        fits = len(words) == len(zeros) == len(scales) == MATRIX and scales[1] == words[1]
        inputs = words[0] * WORD_BITS // self.bits
        fits = fits and words[0] * WORD_BITS % self.bits == 0 and zeros[0] == scales[0]
        fits = fits and zeros[1] == -(-scales[1] * self.bits // WORD_BITS)
        order = self.parts.tensors.get("g_idx")
        fits = fits and (order.shape == (inputs,) if order else inputs % scales[0] == 0)
        self.parts.require(fits, f"{self.bits} bits of GPTQ")
        object.__setattr__(self, "shape", (scales[1], inputs))
        groups = self._find_groups()
        self.parts.require(groups.min() >= 0 and groups.max() < scales[0], f"{self.bits} bits of GPTQ by their groups")

    def read(self, start: int, stop: int) -> Floats:
        """See `Matrix.read`."""
        words = np.ascontiguousarray(self.parts.view("qweight")[:, start:stop].T)
        codes = unpack(words, self.bits, self.shape[1]).astype(np.float32)
        zeros = unpack_between(self.parts.view("qzeros"), self.bits, start, stop).astype(np.float32)
        groups, scales = self._find_groups(), self.parts.widen("scales", (slice(None), slice(start, stop)))
        return (codes - (zeros + self.adds_one).T[:, groups]) * scales.T[:, groups]

    @property
    def grid(self) -> Grid | None:
        """See `Matrix.grid`."""
        size = self.shape[1] // self.parts.shape("scales")[0]
        is_plain = bool((self._find_groups() == np.arange(self.shape[1]) // max(1, size)).all())
        return Grid(self.bits, size) if is_plain else None

    def read_codes(self, start: int, stop: int) -> Codes:
        """See `Matrix.read_codes`."""
        words = np.ascontiguousarray(self.parts.view("qweight")[:, start:stop].T)
        zeros = unpack_between(self.parts.view("qzeros"), self.bits, start, stop).astype(np.float32) + self.adds_one
        scales = self.parts.widen("scales", (slice(None), slice(start, stop))).T
        return Codes(unpack(words, self.bits, self.shape[1]).astype(np.uint8), scales, -zeros.T * scales)

    def _find_groups(self) -> Array:
        if "g_idx" in self.parts.tensors:
            return self.parts.view("g_idx")
        size = self.shape[1] // self.parts.shape("scales")[0]
        return np.arange(self.shape[1]) // size

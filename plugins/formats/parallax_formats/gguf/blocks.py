"""Rows of a GGUF file as float32, by the ``gguf`` package.

In a model folder such a tensor is uint8 [out, bytes], under its usual name, and config.json gives its type:
``"quantization_config": {"quant_method": "gguf", "types": {NAME: "Q4_K"}}``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize

from parallax_core.api import Unsupported
from parallax_formats.matrix import Matrix
from parallax_formats.numbers import Floats

PLAIN = frozenset([GGMLQuantizationType.F32, GGMLQuantizationType.F16, GGMLQuantizationType.BF16])
"""The types that are not blocks."""
FRONT, TWO = slice(0, 2), slice(0, 4)
SCALES = {
    **dict.fromkeys(("Q4_0", "Q5_0", "Q8_0", "IQ4_NL", "IQ4_XS", "IQ1_S"), FRONT),
    **dict.fromkeys(("IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S"), FRONT),
    **dict.fromkeys(("Q4_1", "Q5_1", "Q4_K", "Q5_K"), TWO),
    "Q2_K": slice(80, 84),
    "Q3_K": slice(108, 110),
    "Q6_K": slice(208, 210),
    "TQ1_0": slice(52, 54),
    "TQ2_0": slice(64, 66),
}
"""The bytes of a block that are its float16 scales, by type; if they are finite, so are its numbers."""
CHUNK_VALUES = 1 << 22
"""Numbers that are unpacked at once, which bounds the memory for them (16 MiB in float32)."""
HINT = "update the gguf package, or choose another quantisation of this model"


@cache
def is_read(kind: GGMLQuantizationType) -> bool:
    """Whether the installed ``gguf`` package reads a type as floats."""
    try:
        dequantize(np.zeros((1, GGML_QUANT_SIZES[kind][1]), np.uint8), kind)
    except NotImplementedError:
        return False
    return True


def read_rows(rows: npt.NDArray[np.uint8], kind: GGMLQuantizationType) -> Floats:
    """Return stored rows [rows, bytes] in float32.

    Raises:
        Unsupported: if the ``gguf`` package does not read the type.
    """
    if not is_read(kind):
        raise Unsupported(f"tensors of the type {kind.name} are not read", HINT)
    with np.errstate(all="ignore"):
        found: Floats = dequantize(rows, kind).astype(np.float32, copy=False)
    return found


def read_named(rows: npt.NDArray[np.uint8], name: str) -> Floats:
    """Return stored rows in float32, by the name of their type; see `read_rows`."""
    return read_rows(rows, GGMLQuantizationType[name])


def read_chunks(rows: npt.NDArray[np.uint8], kind: GGMLQuantizationType, width: int) -> Iterator[tuple[int, Floats]]:
    """Yield (first row, float32 values of shape [rows, width]), `CHUNK_VALUES` at a time; see `read_rows`."""
    step = max(1, CHUNK_VALUES // width)
    for start in range(0, len(rows), step):
        yield start, read_rows(rows[start : start + step], kind)


def are_finite(rows: npt.NDArray[np.uint8], kind: GGMLQuantizationType) -> bool:
    """Whether no number of stored rows is infinite or not a number; see `read_rows`."""
    numbers, size = GGML_QUANT_SIZES[kind]
    if kind.name not in SCALES:
        chunks = read_chunks(rows, kind, rows.shape[1] // size * numbers)
        return all(bool(np.isfinite(values).all()) for _, values in chunks)
    scales = np.ascontiguousarray(rows.reshape(len(rows), -1, size)[..., SCALES[kind.name]]).view(np.float16)
    return bool(np.isfinite(scales).all())


@dataclass(frozen=True, slots=True)
class Blocks(Matrix):
    r"""Rows of blocks ``weight`` [\*, out, bytes]."""

    kind: str = "Q8_0"
    """The type of the blocks, as GGUF names it."""

    def __post_init__(self) -> None:
        what = f"blocks of the type {self.kind}"
        self.parts.require(self.kind in GGMLQuantizationType.__members__, what)
        self.parts.require_matrices(what, *self.parts.tensors)
        numbers, size = GGML_QUANT_SIZES[self._type]
        [tensor] = self.parts.tensors.values()
        self.parts.require(tensor.dtype == "uint8" and tensor.shape[-1] % size == 0, what)
        if not is_read(self._type):
            raise Unsupported(f"the weight {self.parts.stem} has {what}, which are not read", HINT)
        object.__setattr__(self, "shape", (*tensor.shape[:-1], tensor.shape[-1] // size * numbers))

    @property
    def _type(self) -> GGMLQuantizationType:
        return GGMLQuantizationType[self.kind]

    def read(self, start: int, stop: int) -> Floats:
        """See `Matrix.read`."""
        [word] = self.parts.tensors
        rows = self.parts.view(word).reshape(self.num_rows, -1)[start:stop]
        return read_rows(np.ascontiguousarray(rows), self._type)

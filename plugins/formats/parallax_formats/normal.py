"""Weights of bitsandbytes: 4 bits as numbers of a table, NF4 or FP4, and 8 with a scale for each row.

Source: bitsandbytes (``QuantState.as_dict``, ``Linear4bit`` and ``Linear8bitLt``), as transformers saves them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from parallax_formats.matrix import MATRIX, Codes, Grid, Matrix
from parallax_formats.numbers import NIBBLE, Array, Floats

WHAT = "bitsandbytes' codes of 4 bits with a table"
CODES, SIZES, TABLE = "weight", "weight.absmax", "weight.quant_map"
OUTER_SIZES, OUTER_TABLE = "weight.nested_absmax", "weight.nested_quant_map"
STATES = {kind: f"weight.quant_state.bitsandbytes__{kind}" for kind in ("nf4", "fp4")}
"""The words of the tensors with the settings of a weight, by the kind of its numbers."""
ROW_SCALES = "SCB"
STATE_BYTES = 4096
STEP = np.float32(1 / 127)
CODE_BITS, MIDDLE = 8, 128


@dataclass(frozen=True, slots=True)
class TableFloats(Matrix):
    """Codes ``weight`` of 4 bits of all numbers in turn, the first of a byte in its upper half.

    A number is what ``quant_map`` [16] has for its code, times the size of its block. Sizes are ``absmax`` in float32,
    or bytes that are coded the same way, with ``nested_quant_map`` [256], ``nested_absmax``, and an offset.
    """

    kind: str = "nf4"
    _state: Mapping[str, Any] = field(init=False)

    def __post_init__(self) -> None:
        self.parts.require_matrices(WHAT)
        object.__setattr__(self, "_state", self._read_state())
        shape, block = self._state.get("shape"), self._state.get("blocksize")
        is_matrix = isinstance(shape, list) and len(shape) == MATRIX and all(map(_is_count, shape))
        self.parts.require(is_matrix and _is_count(block), WHAT)
        object.__setattr__(self, "shape", tuple(shape or ()))
        numbers, blocks = self.shape[0] * self.shape[1], self.parts.view(SIZES).size
        fits = self.parts.view(CODES).size == -(-numbers // 2) and blocks == -(-numbers // (block or 1))
        fits = fits and self._fits(TABLE, NIBBLE + 1) and self.parts.tensors[SIZES].dtype == self._kind_of_sizes
        if self._is_nested:
            outer = self._state.get("nested_blocksize")
            fits = fits and _is_count(outer) and self._fits(OUTER_TABLE, 256)
            fits = fits and self._fits(OUTER_SIZES, -(-blocks // (outer or 1)))
        self.parts.require(fits and isinstance(self._state.get("nested_offset", 0.0), float | int), WHAT)

    def read(self, start: int, stop: int) -> Floats:
        """See `Matrix.read`."""
        first, end = start * self.shape[1], stop * self.shape[1]
        packed = self.parts.view(CODES).reshape(-1)[first // 2 : -(-end // 2)]
        codes = np.stack([packed >> 4, packed & NIBBLE], axis=-1).reshape(-1)[first % 2 :][: end - first]
        block = int(self._state["blocksize"])
        sizes = self._read_sizes(first // block, -(-end // block))
        spread = np.repeat(sizes, block)[first % block :][: end - first]
        return (self.parts.widen(TABLE)[codes] * spread).reshape(stop - start, -1)

    @property
    def _is_nested(self) -> bool:
        return OUTER_SIZES in self.parts.tensors

    @property
    def _kind_of_sizes(self) -> str:
        return "uint8" if self._is_nested else "float32"

    def _fits(self, word: str, count: int) -> bool:
        tensor = self.parts.tensors.get(word)
        return tensor is not None and tensor.dtype == "float32" and tensor.shape == (count,)

    def _read_state(self) -> Mapping[str, Any]:
        stored = self.parts.tensors[STATES[self.kind]]
        self.parts.require(stored.dtype == "uint8" and memoryview(stored.data).nbytes <= STATE_BYTES, WHAT)
        try:
            found = json.loads(bytes(stored.data))
        except (ValueError, RecursionError):
            found = None
        self.parts.require(isinstance(found, dict), f"{WHAT}: its settings are no table of JSON")
        return dict(found or {})

    def _read_sizes(self, start: int, stop: int) -> Floats:
        """Return the sizes of some blocks, [stop - start]."""
        stored: Array = self.parts.view(SIZES).reshape(-1)[start:stop]
        if not self._is_nested:
            return stored.astype(np.float32)
        outer = int(self._state["nested_blocksize"])
        sizes = self.parts.widen(OUTER_SIZES)[np.arange(start, stop) // outer]
        return self.parts.widen(OUTER_TABLE)[stored] * sizes + np.float32(self._state.get("nested_offset", 0.0))


@dataclass(frozen=True, slots=True)
class RowScaled(Matrix):
    """Codes ``weight`` of int8 [out, in], and for each row ``SCB`` [out]: what 127 stands for."""

    def __post_init__(self) -> None:
        codes, scales = self.parts.tensors["weight"], self.parts.tensors[ROW_SCALES]
        fits = codes.dtype == "int8" and scales.dtype == "float32" and scales.shape == codes.shape[:1]
        self.parts.require_matrices("bitsandbytes' codes of 8 bits", "weight")
        self.parts.require(fits and len(codes.shape) == MATRIX, "bitsandbytes' codes of 8 bits")
        object.__setattr__(self, "shape", codes.shape)

    @property
    def grid(self) -> Grid:
        """See `Matrix.grid`."""
        return Grid(CODE_BITS, self.shape[1], has_low=False)

    def read(self, start: int, stop: int) -> Floats:
        """See `Matrix.read`."""
        scales = self.parts.widen(ROW_SCALES, slice(start, stop))[:, None]
        return self.parts.widen("weight", slice(start, stop)) * scales * STEP

    def read_codes(self, start: int, stop: int) -> Codes:
        """See `Matrix.read_codes`."""
        codes, scales = self.parts.view("weight")[start:stop], self.parts.widen(ROW_SCALES, slice(start, stop))
        scales = scales[:, None] * STEP
        return Codes(codes.view(np.uint8) ^ np.uint8(MIDDLE), scales, -MIDDLE * scales)


def _is_count(value: object) -> bool:
    return type(value) is int and value > 0

"""The products of LoRA adapters by the compiled library: all jobs of a matrix in one call."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import POINTER, c_float, c_int32, c_int64, c_void_p, sizeof
from dataclasses import dataclass

import torch

from parallax_backend_torch.kernels.layout import arrange_weight
from parallax_backend_torch.kernels.library import find_library
from parallax_backend_torch.kernels.panels import KINDS
from parallax_backend_torch.kernels.signature import WeightRecord

ROWS_AT_ONCE = 16
"""The most rows of a job: the threads share jobs."""


class JobRecord(ctypes.Structure):
    """``plx::AdapterJob``."""

    _fields_ = (
        ("a", WeightRecord),
        ("b", WeightRecord),
        ("row", c_int64),
        ("rows", c_int64),
        ("column", c_int64),
        ("scale", c_float),
        ("unused", c_int32),
    )


@dataclass(frozen=True, eq=False, slots=True)
class Pair:
    """The matrices of an adapter for some outputs of a matrix, ``scale * (b @ (a @ x))``."""

    a: torch.Tensor
    """[rank, in], float32 or bfloat16; in panels if it is packed."""
    b: torch.Tensor
    """[out, rank]."""
    scale: float
    records: tuple[WeightRecord, WeightRecord] | None = None
    """Both for the library, if they are packed."""

    @property
    def num_bytes(self) -> int:
        """The bytes of both."""
        return int(self.a.nbytes + self.b.nbytes)


def pack_pair(a: torch.Tensor, b: torch.Tensor, scale: float) -> Pair:
    """Return copies of the matrices of an adapter on a CPU, packed if the library has products for them."""
    kind = torch.bfloat16 if a.dtype == b.dtype == torch.bfloat16 else torch.float32
    if _find_function() is None:
        return Pair(a.to(kind, copy=True), b.to(kind, copy=True), scale)
    packed = [arrange_weight(each.to(kind)).clone() for each in (a, b)]
    records = [
        WeightRecord(KINDS[str(kind).removeprefix("torch.")], 0, each.shape[1], each.shape[0], panels.data_ptr(), None)
        for each, panels in zip((a, b), packed, strict=True)
    ]
    return Pair(packed[0], packed[1], scale, (records[0], records[1]))


class Jobs:
    """What several adapters add to the product of one matrix.

    Args:
        parts: for each, its first row, its number of rows, the first column of its output, and its packed matrices.
    """

    def __init__(self, parts: Sequence[tuple[int, int, int, Pair]]) -> None:
        self._pairs = [pair for *_, pair in parts]  # kept alive
        records = [
            JobRecord(*pair.records, row, min(ROWS_AT_ONCE, first + rows - row), column, pair.scale, 0)
            for first, rows, column, pair in parts
            if pair.records
            for row in range(first, first + rows, ROWS_AT_ONCE)
        ]
        self._records, self._count = (JobRecord * len(records))(*records), len(records)
        self._function = _find_function()

    def add(self, x: torch.Tensor, out: torch.Tensor) -> None:
        """Add to ``out``, float32 [rows, out], what the adapters make of ``x``, float32 [rows, in]."""
        assert self._function is not None, "the matrices are packed"
        places = x.data_ptr(), x.stride(0), out.data_ptr(), out.stride(0)
        if self._function(self._records, self._count, *places):
            raise MemoryError("there is not enough memory for the intermediate results of a step")


def _find_function() -> ctypes._NamedFuncPointer | None:
    """Return the function of the library; None without the library, or with one from before it had the function."""
    library = find_library()
    try:
        if library is None or library.plx_adapter_job_bytes() != sizeof(JobRecord):
            return None
        function = library.plx_adapt
    except AttributeError:
        return None
    function.restype = c_int32
    function.argtypes = (POINTER(JobRecord), c_int64, c_void_p, c_int64, c_void_p, c_int64)
    return function

"""The products of LoRA adapters by the compiled library: one call for each matrix."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch

from parallax_backend_torch.kernels.layout import split_panels
from parallax_backend_torch.kernels.library import find_library
from parallax_backend_torch.kernels.panels import KINDS
from parallax_backend_torch.kernels.signature import (
    AdapterRecord,
    AdapterRowsRecord,
    AdapterStepRecord,
    LowRankRecord,
)


@dataclass(frozen=True, eq=False, slots=True)
class Pair:
    """The matrices of an adapter for some outputs of a matrix, ``scale * (b @ (a @ x))``; both of the same dtype."""

    a: torch.Tensor
    """[rank, in], float32 or bfloat16."""
    b: torch.Tensor
    """[out, rank]; [panels, rank, 16] if it is packed."""
    scale: float
    out_features: int

    @property
    def num_bytes(self) -> int:
        """The bytes of both."""
        return int(self.a.nbytes + self.b.nbytes)


def pack_pair(a: torch.Tensor, b: torch.Tensor, scale: float) -> Pair:
    """Return copies of the matrices of an adapter on a CPU, packed if there is the library."""
    if find_library() is None:
        return Pair(a.clone(), b.clone(), scale, len(b))
    panels = split_panels(b).transpose(1, 2).clone(memory_format=torch.contiguous_format)
    return Pair(a.clone(memory_format=torch.contiguous_format), panels, scale, len(b))


class PackedAdapter:
    """An adapter for the library.

    Args:
        matrices: for each matrix of the model that takes adapters, by its number, what is added to it: the first
            column, and the packed pair.
    """

    def __init__(self, matrices: Sequence[Sequence[tuple[int, Pair]]]) -> None:
        self._matrices = matrices  # kept alive
        records = [_record(column, pair) for parts in matrices for column, pair in parts]
        begins = list(accumulate(map(len, matrices), initial=0))
        self._records, self._begins = (LowRankRecord * len(records))(*records), (ctypes.c_int32 * len(begins))(*begins)
        self.record = AdapterRecord(ctypes.addressof(self._records), ctypes.addressof(self._begins))


class AdapterStep:
    """The adapters of the rows of a step, for the library.

    Args:
        groups: each adapter, with the places of its rows in the step.
    """

    def __init__(self, groups: Sequence[tuple[PackedAdapter, Sequence[int]]]) -> None:
        self._adapters = [adapter for adapter, _ in groups]  # kept alive
        self._places = [(ctypes.c_int32 * len(places))(*places) for _, places in groups]
        records = [
            AdapterRowsRecord(ctypes.addressof(adapter.record), ctypes.addressof(places), len(places))
            for adapter, places in zip(self._adapters, self._places, strict=True)
        ]
        self._groups = (AdapterRowsRecord * len(records))(*records)
        self.record = AdapterStepRecord(ctypes.addressof(self._groups), len(records))

    def add(self, matrix: int, x: torch.Tensor, out: torch.Tensor) -> None:
        """Add to ``out``, float32 [rows, out], what the adapters make of ``x``, float32 [rows, in], at a matrix."""
        library = find_library()
        assert library is not None, "the matrices are packed"
        library.plx_adapt(self.record, matrix, x.data_ptr(), x.stride(0), out.data_ptr(), out.stride(0))


def _record(column: int, pair: Pair) -> LowRankRecord:
    rank, width = pair.a.shape
    kind = KINDS[str(pair.a.dtype).removeprefix("torch.")]
    return LowRankRecord(pair.a.data_ptr(), pair.b.data_ptr(), rank, width, pair.out_features, column, pair.scale, kind)

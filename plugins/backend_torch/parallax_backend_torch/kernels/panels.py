"""Matrix products by the compiled library."""

from __future__ import annotations

import ctypes
from typing import Literal

import torch
from torch.nn import functional

from parallax_backend_torch.kernels.arena import arena
from parallax_backend_torch.kernels.dense import check_input
from parallax_backend_torch.kernels.layout import PANEL, arrange_weight
from parallax_backend_torch.kernels.rows import Cut
from parallax_backend_torch.kernels.signature import WeightRecord

KINDS = {"float32": 0, "bfloat16": 1, "int8": 2, "int4": 3, "int8_low": 4}
GATES = {"silu": 1, "gelu_tanh": 2}


class PanelPacked:
    """A weight in panels; see ``linear.Packed``."""

    def __init__(self, library: ctypes.CDLL, cut: Cut, bias: torch.Tensor | None, *, narrow: bool = False) -> None:
        self.kind = cut.kind
        self.out_features, self.in_features = cut.shape
        panels = (arrange_weight(part) for part in cut.parts)
        self.data = arena.place(library, panels, -(-self.out_features // PANEL))
        self.bias = bias
        self.num_bytes = self.data.nbytes + (0 if bias is None else bias.nbytes)
        data = self.data.data_ptr()
        self.record = WeightRecord(KINDS[self.kind], narrow, self.in_features, self.out_features, data, _find(bias))
        self._library = library
        self._multiply, self._multiply_gated = library.plx_multiply, library.plx_multiply_gated

    def apply(self, x: torch.Tensor, residual: torch.Tensor | None = None) -> torch.Tensor:
        """Multiply."""
        check_input(x, self.in_features)
        rows = x.shape[0]
        out = torch.empty(rows, self.out_features)
        stride = 0
        if residual is not None:
            check_input(residual, self.out_features, rows)
            stride = residual.stride(0)
        self._multiply(self.record, x.data_ptr(), x.stride(0), rows, out.data_ptr(), _find(residual), stride)
        return out

    def apply_gated(self, x: torch.Tensor, gate: Literal["silu", "gelu_tanh"] = "silu") -> torch.Tensor:
        """Multiply, and gate the second half of the outputs by the first."""
        half = self.out_features // 2
        if half % PANEL:
            gates, values = self.apply(x).chunk(2, dim=1)
            shaped = functional.silu(gates) if gate == "silu" else functional.gelu(gates, approximate="tanh")
            return shaped.mul_(values)
        check_input(x, self.in_features)
        out = torch.empty(x.shape[0], half)
        self._multiply_gated(self.record, x.data_ptr(), x.stride(0), x.shape[0], out.data_ptr(), GATES[gate])
        return out

    def gather(self, ids: torch.Tensor) -> torch.Tensor:
        """Pick rows."""
        ids = ids.long().contiguous()
        out = torch.empty(ids.shape[0], self.in_features)
        wrong = self._library.plx_gather(self.record, ids.data_ptr(), ids.shape[0], out.data_ptr())
        if wrong >= 0:
            raise IndexError(f"row {int(ids[wrong])} of a weight with {self.out_features}")
        return out

    def to_dense(self) -> torch.Tensor:
        """Return the weight in float32."""
        return self.gather(torch.arange(self.out_features))


def _find(tensor: torch.Tensor | None) -> int | None:
    """Return the address of a tensor, for ctypes; None if there is no tensor."""
    return None if tensor is None else int(tensor.data_ptr())

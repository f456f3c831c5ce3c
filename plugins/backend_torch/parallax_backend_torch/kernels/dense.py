"""The products in plain torch, where there is no compiled library."""

from __future__ import annotations

from typing import Literal

import torch
from torch.nn import functional

from parallax_backend_torch.kernels.quantize import Quantized

ROWS_AT_ONCE = 4096
"""Rows of a quantised weight that are made dense at once, which bounds the memory that takes."""


class DensePacked:
    """A weight as torch multiplies by it; what its members mean is said at ``linear.Packed``."""

    def __init__(self, weight: torch.Tensor | Quantized, width: int, bias: torch.Tensor | None) -> None:
        self.weight = weight if isinstance(weight, Quantized) else weight.contiguous()
        self.bias = bias
        self.kind = name_kind(weight)
        self.in_features = width
        parts = list_parts(weight)
        self.out_features = int(parts[0].shape[0])
        self.num_bytes = sum(part.nbytes for part in parts) + (0 if bias is None else bias.nbytes)

    def apply(self, x: torch.Tensor, residual: torch.Tensor | None = None) -> torch.Tensor:
        """Multiply."""
        check_input(x, self.in_features)
        if isinstance(self.weight, Quantized) or self.weight.dtype != torch.float32:
            starts = range(0, self.out_features, ROWS_AT_ONCE)
            out = torch.cat([functional.linear(x, self._widen(start)) for start in starts], dim=1)
            out = out if self.bias is None else out.add_(self.bias)
        else:
            out = functional.linear(x, self.weight, self.bias)
        return out if residual is None else out.add_(residual)

    def apply_gated(self, x: torch.Tensor, gate: Literal["silu", "gelu_tanh"] = "silu") -> torch.Tensor:
        """Multiply, and gate one half by the other."""
        gates, values = self.apply(x).chunk(2, dim=1)
        shaped = functional.silu(gates) if gate == "silu" else functional.gelu(gates, approximate="tanh")
        return shaped.mul_(values)

    def gather(self, ids: torch.Tensor) -> torch.Tensor:
        """Pick rows."""
        if len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < self.out_features:
            raise IndexError(f"rows {int(ids.min())} to {int(ids.max())} of a weight with {self.out_features}")
        return self._select(ids)

    def to_dense(self) -> torch.Tensor:
        """Return the weight in float32."""
        return self._select(slice(None))

    def _widen(self, start: int) -> torch.Tensor:
        return self._select(slice(start, start + ROWS_AT_ONCE))

    def _select(self, rows: slice | torch.Tensor) -> torch.Tensor:
        if isinstance(self.weight, Quantized):
            low = None if self.weight.low is None else self.weight.low[rows]
            return Quantized(self.weight.codes[rows], self.weight.scale[rows], low).to_dense()[:, : self.in_features]
        return self.weight[rows].float()


def name_kind(weight: torch.Tensor | Quantized) -> Literal["float32", "bfloat16", "int8", "int4"]:
    """Return the kind of a weight."""
    if isinstance(weight, Quantized):
        return "int8" if weight.low is None else "int4"
    return "float32" if weight.dtype == torch.float32 else "bfloat16"


def list_parts(weight: torch.Tensor | Quantized) -> list[torch.Tensor]:
    """Return the tensors a weight is made of."""
    if not isinstance(weight, Quantized):
        return [weight]
    return [part for part in (weight.codes, weight.scale, weight.low) if part is not None]


def check_input(x: torch.Tensor, width: int, rows: int | None = None) -> None:
    """Refuse what cannot be multiplied.

    Raises:
        ValueError: not float32 [rows, width], or not contiguous in the last dimension.
    """
    wrong = x.dim() != 2 or x.shape[1] != width or (rows is not None and x.shape[0] != rows)  # noqa: PLR2004 -- [rows, in]
    if wrong or x.dtype != torch.float32 or (x.stride(1) != 1 and width > 1):
        raise ValueError(f"a contiguous float32 [{rows or 'rows'}, {width}] is wanted, not {x.dtype} {list(x.shape)}")

"""Matrix products in plain torch, used without the compiled library."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch.nn import functional

from parallax_backend_torch.kernels.quantize import Quantized, join_rows
from parallax_backend_torch.kernels.rows import Cut

ROWS_AT_ONCE = 4096
"""Rows of a quantised weight that are made dense at once, which bounds the memory for them."""


class DensePacked:
    """A weight for products in torch; see ``linear.Packed``."""

    def __init__(self, cut: Cut, bias: torch.Tensor | None) -> None:
        self.kind = cut.kind
        self.out_features, self.in_features = cut.shape
        self.weight = join_parts(list(cut.parts))
        self.bias = bias
        self.num_bytes = sum(part.nbytes for part in list_parts(self.weight)) + (0 if bias is None else bias.nbytes)

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
        """Multiply, and gate the second half of the outputs by the first."""
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


def join_parts(parts: Sequence[torch.Tensor | Quantized]) -> torch.Tensor | Quantized:
    """Return a copy of parts of one kind, stacked by rows."""
    coded = [part for part in parts if isinstance(part, Quantized)]
    return join_rows(coded) if coded else torch.cat([part for part in parts if not isinstance(part, Quantized)])


def list_parts(weight: torch.Tensor | Quantized) -> list[torch.Tensor]:
    """Return the tensors of a weight."""
    if not isinstance(weight, Quantized):
        return [weight]
    return [part for part in (weight.codes, weight.scale, weight.low) if part is not None]


def check_input(x: torch.Tensor, width: int, rows: int | None = None) -> None:
    """Refuse shapes and dtypes that cannot be multiplied.

    Raises:
        ValueError: not float32 [rows, width], or not contiguous in the last dimension.
    """
    wrong = x.dim() != 2 or x.shape[1] != width or (rows is not None and x.shape[0] != rows)  # noqa: PLR2004 -- [rows, in]
    if wrong or x.dtype != torch.float32 or (x.stride(1) != 1 and width > 1):
        raise ValueError(f"a contiguous float32 [{rows or 'rows'}, {width}] is needed, not {x.dtype} {list(x.shape)}")

"""Makes the matrices of layers: packed for the kernels on a CPU, PyTorch tensors elsewhere."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch.nn import functional

from parallax_backend_torch.kernels.linear import Gate, Packed, pack_rows
from parallax_backend_torch.kernels.quantize import Quantized
from parallax_backend_torch.kernels.rows import Rows, WeightKind

KIND_BYTES: dict[WeightKind, float] = {"float32": 4.0, "bfloat16": 2.0, "int8": 1.0625, "int4": 0.625}
Purpose = Literal["layer", "attention", "ends", "router"]
FINE: frozenset[Purpose] = frozenset(["attention", "ends"])
"""What is rounded to no fewer than 8 bits: of all matrices, those few whose rounding is felt most."""


class DeviceLinear:
    """A matrix on another device than a CPU; what its members mean is said at `kernels.linear.Packed`."""

    kind: WeightKind

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self.weight, self.bias = weight, bias
        self.kind = "float32" if weight.dtype == torch.float32 else "bfloat16"
        self.out_features, self.in_features = (int(size) for size in weight.shape)
        self.num_bytes = weight.nbytes + (0 if bias is None else bias.nbytes)

    def apply(self, x: torch.Tensor, residual: torch.Tensor | None = None) -> torch.Tensor:
        """Multiply."""
        out = functional.linear(x, self.weight, self.bias)
        return out if residual is None else residual + out

    def apply_gated(self, x: torch.Tensor, gate: Gate = "silu") -> torch.Tensor:
        """Multiply, and gate one half by the other."""
        gates, values = self.apply(x).chunk(2, dim=1)
        shaped = functional.silu(gates) if gate == "silu" else functional.gelu(gates, approximate="tanh")
        return shaped * values

    def gather(self, ids: torch.Tensor) -> torch.Tensor:
        """Pick rows."""
        return self.weight[ids]

    def to_dense(self) -> torch.Tensor:
        """Return the weight in float32."""
        return self.weight.float()


@dataclass(frozen=True, slots=True)
class LayerFactory:
    """The device and dtype of a stage."""

    device: torch.device
    dtype: torch.dtype
    """Of activations: float32 on a CPU."""
    kind: WeightKind
    """How a CPU keeps the matrices of layers."""
    kept: torch.dtype
    """Of keys and values."""
    keeps_blocks: bool = True
    """Whether a CPU keeps matrices that the checkpoint holds in few bits as they are."""
    narrow: bool = False
    """Whether a CPU may round activations to bfloat16 to multiply them with matrices in it."""

    @property
    def item_bytes(self) -> float:
        """What a number of a matrix takes, its share of scales included."""
        return KIND_BYTES[self.kind] if self.device.type == "cpu" else float(self.dtype.itemsize)

    def choose_kind(self, stored: WeightKind | None, purpose: Purpose) -> WeightKind:
        """Return how a CPU keeps a matrix.

        Args:
            stored: what the checkpoint holds it in, if that is few bits.
            purpose: what it is for; the ends are embedding and head. A router is kept in float32.
        """
        if purpose == "router":
            return "float32"
        if stored and self.keeps_blocks:
            return stored
        return "int8" if purpose in FINE and self.kind == "int4" else self.kind

    def make_linear(self, rows: Rows, bias: torch.Tensor | None, kind: WeightKind) -> Packed:
        """Return a matrix [out, in] ready to multiply by.

        Args:
            rows: its values; copied.
            bias: of shape [out], or None.
            kind: how a CPU keeps it.
        """
        if self.device.type == "cpu":
            return pack_rows(rows, kind, bias, narrow=self.narrow)
        whole = rows.read(0, rows.shape[0])
        weight = whole.to_dense() if isinstance(whole, Quantized) else whole
        moved = None if bias is None else bias.to(self.device, self.dtype)
        return DeviceLinear(weight.to(self.device, self.dtype), moved)

    def make_vector(self, values: torch.Tensor) -> torch.Tensor:
        """Return the few numbers of a norm and the like, in float32 on the device."""
        return values.to(self.device, torch.float32, copy=True)

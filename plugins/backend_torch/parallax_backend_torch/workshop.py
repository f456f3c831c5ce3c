"""What layers are built of: matrices to multiply by, on a CPU packed for its kernels, elsewhere as PyTorch has them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch.nn import functional

from parallax_backend_torch.kernels.library import find_library
from parallax_backend_torch.kernels.linear import Gate, Kind, Packed, pack

KIND_BYTES: dict[Kind, float] = {"float32": 4.0, "bfloat16": 2.0, "int8": 1.0625, "int4": 0.625}
Purpose = Literal["layer", "ends", "router"]


class DeviceLinear:
    """A matrix on another device than a CPU; what its members mean is said at `kernels.linear.Packed`."""

    kind: Kind

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
class Workshop:
    """Where a stage computes, and in what."""

    device: torch.device
    dtype: torch.dtype
    """Of activations: float32 on a CPU."""
    kind: Kind
    """How a CPU keeps the matrices of layers."""
    kept: torch.dtype
    """Of keys and values."""

    @property
    def item_bytes(self) -> float:
        """What a number of a matrix takes, its share of scales included."""
        return KIND_BYTES[self.kind] if self.device.type == "cpu" else float(self.dtype.itemsize)

    def make_linear(self, weight: torch.Tensor, bias: torch.Tensor | None, purpose: Purpose = "layer") -> Packed:
        """Return a matrix [out, in] ready to multiply by.

        Args:
            weight: of any floating dtype; copied.
            bias: of shape [out], or None.
            purpose: embedding and head, the ends, are not kept in fewer than 8 bits, and a router is kept in float32.
        """
        if self.device.type != "cpu":
            moved = None if bias is None else bias.to(self.device, self.dtype)
            return DeviceLinear(weight.to(self.device, self.dtype), moved)
        kind: Kind = self.kind
        if purpose == "router":
            kind = "float32"
        elif purpose == "ends" and kind == "int4":
            kind = "int8"
        if kind in ("float32", "bfloat16"):
            # Without the kernels, what is packed is the tensor itself, which may lie in a file.
            weight = weight.to(getattr(torch, kind), copy=find_library() is None)
        return pack(weight, kind, bias=bias)

    def make_vector(self, values: torch.Tensor) -> torch.Tensor:
        """Return the few numbers of a norm and the like, in float32 on the device."""
        return values.to(self.device, torch.float32, copy=True)

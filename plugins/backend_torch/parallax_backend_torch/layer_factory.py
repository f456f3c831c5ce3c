"""Makes the matrices of layers: packed for the kernels on a CPU, PyTorch tensors elsewhere."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Literal

import torch
from torch.nn import functional

from parallax_backend_torch.device_kernels import DEVICE_KERNELS
from parallax_backend_torch.kernels.linear import Gate, Packed, pack_rows
from parallax_backend_torch.kernels.quantize import Quantized
from parallax_backend_torch.kernels.rows import Rows, WeightKind
from parallax_backend_torch.product_tiles import fits
from parallax_backend_torch.sizes import KIND_BYTES

if TYPE_CHECKING:
    from parallax_backend_torch.adapters import AdapterTable
    from parallax_backend_torch.triton_products import Product

Purpose = Literal["layer", "attention", "ends", "router"]
FINE: frozenset[Purpose] = frozenset(["attention", "ends"])
"""The purposes of matrices that keep at least 8 bits: few, and most sensitive to rounding."""


class DeviceLinear:
    """A matrix on a device other than a CPU; see `kernels.linear.Packed`."""

    kind: WeightKind

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self.weight, self.bias = weight, bias
        self.kind = "float32" if weight.dtype == torch.float32 else "bfloat16"
        self.out_features, self.in_features = (int(size) for size in weight.shape)
        self.num_bytes = weight.nbytes + (0 if bias is None else bias.nbytes)

    @cached_property
    def few_rows(self) -> Product | None:
        """Multiplies a few rows; None where no kernel fits the matrix or the device."""
        kernels = DEVICE_KERNELS.find(self.weight.device)
        return kernels.Product(self.weight, self.bias) if kernels and fits(self.weight) else None

    def apply(self, x: torch.Tensor, residual: torch.Tensor | None = None) -> torch.Tensor:
        """Multiply."""
        if product := self._find_product(x):
            return product.apply(x, residual)
        if residual is not None and self.bias is None:
            return torch.addmm(residual, x, self.weight.t())
        out = functional.linear(x, self.weight, self.bias)
        return out if residual is None else residual + out

    def apply_gated(self, x: torch.Tensor, gate: Gate = "silu") -> torch.Tensor:
        """Multiply, and gate the second half of the outputs by the first."""
        if product := self._find_product(x):
            return product.apply_gated(x, gate)
        both = self.apply(x)
        if kernels := DEVICE_KERNELS.find(x.device):
            gated: torch.Tensor = kernels.apply_gate(both, gate)
            return gated
        gates, values = both.chunk(2, dim=1)
        shaped = functional.silu(gates) if gate == "silu" else functional.gelu(gates, approximate="tanh")
        return shaped * values

    def gather(self, ids: torch.Tensor) -> torch.Tensor:
        """Pick rows."""
        return self.weight[ids]

    def to_dense(self) -> torch.Tensor:
        """Return the weight in float32."""
        return self.weight.float()

    def _find_product(self, x: torch.Tensor) -> Product | None:
        """Return the kernel for some rows; None if they are many, or it does not take them."""
        product = self.few_rows
        if product is None or not 0 < len(x) <= product.most_rows:
            return None
        return product if x.is_contiguous() and x.dtype == self.weight.dtype else None


@dataclass(frozen=True, slots=True)
class LayerFactory:
    """The device and the dtypes of a stage; makes its matrices."""

    device: torch.device
    dtype: torch.dtype
    """The dtype of activations; float32 on a CPU."""
    kind: WeightKind
    """The form of the layers' matrices on a CPU."""
    kept: torch.dtype
    """The dtype of keys and values."""
    keeps_blocks: bool = True
    """Whether quantised matrices of the checkpoint stay quantised on a CPU."""
    narrow: bool = False
    """Whether activations may be rounded to bfloat16 on a CPU, for products with bfloat16 matrices."""
    adapters: AdapterTable | None = None
    """The LoRA adapters of the layers; None: they take none."""

    @property
    def item_bytes(self) -> float:
        """The bytes per number of a matrix, including its share of scales."""
        return KIND_BYTES[self.kind] if self.device.type == "cpu" else float(self.dtype.itemsize)

    @property
    def adapter_dtype(self) -> torch.dtype:
        """The dtype of the matrices of adapters: as precise as those that they are added to."""
        return torch.bfloat16 if self.device.type == "cpu" and self.kind != "float32" else self.dtype

    def choose_kind(self, stored: WeightKind | None, purpose: Purpose) -> WeightKind:
        """Return the form of a matrix on a CPU.

        Args:
            stored: the form in the checkpoint, if it is quantised.
            purpose: the use of the matrix; ``ends`` are embedding and head. A router is kept in float32.
        """
        if purpose == "router":
            return "float32"
        if stored and self.keeps_blocks:
            return stored
        return "int8" if purpose in FINE and self.kind == "int4" else self.kind

    def make_linear(self, rows: Rows, bias: torch.Tensor | None, kind: WeightKind) -> Packed:
        """Return a matrix [out, in] ready for products.

        Args:
            rows: its values; copied.
            bias: the bias, of shape [out], or None.
            kind: its form on a CPU.
        """
        if self.device.type == "cpu":
            return pack_rows(rows, kind, bias, narrow=self.narrow)
        whole = rows.read(0, rows.shape[0])
        weight = whole.to_dense() if isinstance(whole, Quantized) else whole
        moved = None if bias is None else bias.to(self.device, self.dtype)
        return DeviceLinear(weight.to(self.device, self.dtype), moved)

    def make_vector(self, values: torch.Tensor) -> torch.Tensor:
        """Return a vector, such as the weight of a norm, in float32 on the device."""
        return values.to(self.device, torch.float32, copy=True)

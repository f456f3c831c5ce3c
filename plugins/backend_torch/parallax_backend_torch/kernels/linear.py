"""Matrix products with a packed weight, in the form it is kept in.

Activations are always float32. What a product computes, for a weight of each kind:

* ``float32``, ``bfloat16``: products and sums in float32; a bfloat16 weight is widened, exactly, as it is read. Where
  activations may be ``narrow``, and the kernels in use multiply bfloat16 by bfloat16, they are rounded to it.
* ``int8``: weights in 8 bits, a scale for each 32 along the inputs. The compiled library rounds each group of 32
  activations to 16 bits with a scale of their own, and adds products of integers exactly; torch does not round them.
* ``int4``: weights in 4 bits, a scale and an offset for each 32. The compiled library rounds groups of 32 activations
  to 8 bits.
"""

from __future__ import annotations

from typing import Literal, Protocol

import torch

from parallax_backend_torch.kernels.dense import DensePacked
from parallax_backend_torch.kernels.ggml import Form, find_layout
from parallax_backend_torch.kernels.library import find_library
from parallax_backend_torch.kernels.panels import PanelPacked
from parallax_backend_torch.kernels.quantize import GROUP
from parallax_backend_torch.kernels.rows import BlockRows, Rows, TensorRows, WeightKind, cut_rows
from parallax_core.api import Unsupported

__all__ = ["Gate", "Packed", "WeightKind", "pack", "pack_blocks", "pack_rows"]

Gate = Literal["silu", "gelu_tanh"]


class Packed(Protocol):
    """A weight [out, in] ready for products, with its bias if it has one."""

    kind: WeightKind
    out_features: int
    in_features: int
    num_bytes: int
    """Memory of the weight, its scales and its bias."""

    def apply(self, x: torch.Tensor, residual: torch.Tensor | None = None) -> torch.Tensor:
        """Return ``x @ weight.T + bias (+ residual)``: float32 [rows, in] to float32 [rows, out], any number of rows.

        Args:
            x: float32 [rows, in], contiguous in its last dimension.
            residual: float32 [rows, out], contiguous in its last dimension.

        Raises:
            ValueError: a wrong shape or dtype.
        """

    def apply_gated(self, x: torch.Tensor, gate: Gate = "silu") -> torch.Tensor:
        """Return ``f(y[:, :out/2]) * y[:, out/2:]`` of the product ``y``: float32 [rows, out / 2].

        So the weight is the gate's rows followed by those that are gated, half each.
        """

    def gather(self, ids: torch.Tensor) -> torch.Tensor:
        """Return rows of the weight, as an embedding: int64 [n] to float32 [n, in].

        Raises:
            IndexError: an id that is not in 0 .. out - 1.
        """

    def to_dense(self) -> torch.Tensor:
        """Return the weight as it is used: float32 [out, in]."""


def pack(weight: torch.Tensor, kind: WeightKind, group: int = GROUP, bias: torch.Tensor | None = None) -> Packed:
    """Arrange a weight for products.

    Args:
        weight: [out, in] of any float dtype, on the CPU.
        kind: how it is kept.
        group: inputs that share a scale, for the kinds that have scales; only 32.
        bias: [out], kept in float32.

    Raises:
        Unsupported: another group than 32.
    """
    if group != GROUP and kind in ("int8", "int4"):
        raise Unsupported(f"groups of {group} weights are not offered", f"use groups of {GROUP}")
    return pack_rows(TensorRows(weight), kind, bias)


def pack_blocks(blocks: torch.Tensor, form: Form, bias: torch.Tensor | None = None) -> Packed:
    """Arrange a weight that a GGUF file holds quantised; what `ggml` says of its type is all the rounding there is.

    Args:
        blocks: uint8 [out, bytes], the rows as they are in the file.
        form: their type.
        bias: [out], kept in float32.

    Raises:
        Unsupported: a type not known here, or rows that are not whole blocks.
    """
    layout = find_layout(form, blocks.shape[1])
    rows = BlockRows(blocks, form, blocks.shape[1] // layout.size * layout.weights)
    return pack_rows(rows, layout.kind, bias)


def pack_rows(rows: Rows, kind: WeightKind, bias: torch.Tensor | None = None, *, narrow: bool = False) -> Packed:
    """Arrange a weight that is read a few rows at a time, which takes little memory besides what it is kept in.

    Args:
        rows: the weight.
        kind: how it is kept.
        bias: [out], kept in float32.
        narrow: whether activations may be rounded to bfloat16 where the weight is kept in it.
    """
    bias = None if bias is None else bias.float().contiguous()
    library, cut = find_library(), cut_rows(rows, kind)
    return DensePacked(cut, bias) if library is None else PanelPacked(library, cut, bias, narrow=narrow)

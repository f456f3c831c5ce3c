"""Matrix products with packed weights of several kinds.

Activations are always float32. The arithmetic of a product, by the kind of its weight:

* ``float32``, ``bfloat16``: products and sums in float32; a bfloat16 weight is widened exactly when it is read. If
  activations may be ``narrow``, and the kernels in use multiply bfloat16 by bfloat16, they are rounded to bfloat16.
* ``int8``: weights in 8 bits, with a scale for each 32 inputs. The compiled library rounds each group of 32 activations
  to 16 bits with a scale, and adds products of integers exactly; torch does not round them.
* ``int8_low``: the same with an offset for each 32 inputs.
* ``int4``: weights in 4 bits, with a scale and an offset for each 32 inputs. The compiled library rounds groups of 32
  activations to 8 bits.
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
    """The bytes of the weight, its scales and its bias."""

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

        The first half of the weight's rows is the gate, the second half the rows that it gates.
        """

    def gather(self, ids: torch.Tensor) -> torch.Tensor:
        """Return rows of the weight, as an embedding does: int64 [n] to float32 [n, in].

        Raises:
            IndexError: an id that is not in 0 .. out - 1.
        """

    def to_dense(self) -> torch.Tensor:
        """Return the weight with its rounding: float32 [out, in]."""


def pack(weight: torch.Tensor, kind: WeightKind, group: int = GROUP, bias: torch.Tensor | None = None) -> Packed:
    """Arrange a weight for products.

    Args:
        weight: [out, in] of any float dtype, on the CPU.
        kind: the form in memory.
        group: the number of inputs that share a scale, for kinds with scales; only 32.
        bias: [out], kept in float32.

    Raises:
        Unsupported: another group than 32.
    """
    if group != GROUP and kind in ("int8", "int8_low", "int4"):
        raise Unsupported(f"groups of {group} weights are not supported", f"use groups of {GROUP}")
    return pack_rows(TensorRows(weight), kind, bias)


def pack_blocks(blocks: torch.Tensor, form: Form, bias: torch.Tensor | None = None) -> Packed:
    """Arrange a quantised weight of a GGUF file, with no more rounding than `ggml` describes for its type.

    Args:
        blocks: uint8 [out, bytes], the rows as in the file.
        form: the type of the blocks.
        bias: [out], kept in float32.

    Raises:
        Unsupported: an unknown type, or rows that are not whole blocks.
    """
    layout = find_layout(form, blocks.shape[1])
    rows = BlockRows(blocks, form, blocks.shape[1] // layout.size * layout.weights)
    return pack_rows(rows, layout.kind, bias)


def pack_rows(rows: Rows, kind: WeightKind, bias: torch.Tensor | None = None, *, narrow: bool = False) -> Packed:
    """Arrange a weight that is read a few rows at a time, which takes little memory besides the result.

    Args:
        rows: the weight.
        kind: the form in memory.
        bias: [out], kept in float32.
        narrow: whether activations may be rounded to bfloat16 if the weight is bfloat16.
    """
    bias = None if bias is None else bias.float().contiguous()
    library, cut = find_library(), cut_rows(rows, kind)
    return DensePacked(cut, bias) if library is None else PanelPacked(library, cut, bias, narrow=narrow)

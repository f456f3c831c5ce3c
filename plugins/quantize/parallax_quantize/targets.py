"""What a model can become: the numbers of each kind of matrix, and the layout of the files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import gcd
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from parallax_core.api import Unsupported, UsageError
from parallax_quantize.experts import WORDS, ExpertTensor
from parallax_quantize.forms import BITS, MIX, Layout
from parallax_quantize.grids import AffineGrid, FloatGrid, Grid
from parallax_quantize.rounding import ROWS, Rounded

Packed = dict[str, torch.Tensor]
"""The tensors of a weight, by their last word."""
MIXTRAL = "block_sparse_moe"
"""In the names of models whose experts have matrices called w1, w2 and w3."""
ENDS_BITS = 8
"""Of embedding and head, where they are quantised: few numbers, and the most sensitive to rounding."""
FINE_BITS = 6
"""Of the more sensitive matrices of a mix."""


@dataclass(frozen=True, slots=True)
class Target:
    """A form of a whole model."""

    name: str
    layout: Layout
    layers: Grid
    """The grid of the matrices of layers."""
    ends: Grid | None
    """The grid of embedding and head; None: they stay as they are."""
    fine: Grid | None = None
    """The grid of the more sensitive matrices of layers, see `choice.SENSITIVE`; None: that of the others."""

    def pack(self, rounded: Rounded, grid: Grid, dtype: torch.dtype) -> Packed:
        """Return the tensors of a rounded matrix."""
        words, scales = pack_codes(rounded.codes, grid.bits), rounded.fitted.scale
        if isinstance(grid, FloatGrid):
            return {"weight": words.view(torch.uint32), "scales": (scales.log2().round() + 127).to(torch.uint8)}
        if self.layout == "mlx":
            lows = rounded.fitted.low.to(dtype)
            return {"weight": words.view(torch.uint32), "scales": scales.to(dtype), "biases": lows}
        zeros = torch.where(scales > 0, -rounded.fitted.low / scales, 0).round().to(torch.uint8)
        return {
            "weight_packed": words,
            "weight_scale": scales.to(dtype),
            "weight_zero_point": pack_codes(zeros.T.contiguous(), grid.bits).T.contiguous(),
            "weight_shape": torch.tensor(rounded.codes.shape),
        }

    def divide(self, experts: ExpertTensor, whole: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield the names of the matrices of experts, and their values: all experts in one for mlx, else each.

        Raises:
            Unsupported: if the layout has no names for them.
        """
        if self.layout == "mlx":
            yield self._name_stack(experts), whole
            return
        if experts.is_turned:
            raise Unsupported(f"{experts.module} is not written in this layout", "leave --for out")
        names = {word: name for name, word in WORDS.items() if name.startswith("w") == (MIXTRAL in experts.module)}
        for number, matrix in enumerate(whole):
            yield f"{experts.module}.{number}.{names[experts.word]}", matrix

    def name_bias(self, experts: ExpertTensor, whole: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield the name and the values of a bias of experts."""
        yield f"{self._name_stack(experts)}.bias", whole

    def _name_stack(self, experts: ExpertTensor) -> str:
        """Return the name of a matrix of all experts in mlx-lm."""
        has_own_name = experts.is_turned or experts.is_bias  # of gpt-oss
        module = experts.module if has_own_name else f"{experts.module.removesuffix('experts')}switch_mlp"
        return f"{module}.{experts.word}_proj"

    def describe(self, grids: Mapping[str, Grid], plain: Sequence[str]) -> dict[str, Any]:
        """Return what config.json says of the weights.

        Args:
            grids: those of matrices, by module.
            plain: the modules whose matrices are not quantised.
        """
        if self.layout == "mlx":
            others = {stem: describe_grid(grid) for stem, grid in grids.items() if grid != self.layers}
            both = {**describe_grid(self.layers), **others}
            return {"quantization": both, "quantization_config": both}
        weights = {"num_bits": self.layers.bits, "type": "int", "symmetric": False, "strategy": "group"}
        group = {"targets": ["Linear"], "weights": {**weights, "group_size": self.layers.group, "dynamic": False}}
        return {
            "quantization_config": {
                "quant_method": "compressed-tensors",
                "format": "pack-quantized",
                "quantization_status": "compressed",
                "config_groups": {"group_0": {**group, "input_activations": None, "output_activations": None}},
                "ignore": list(plain),
                "kv_cache_scheme": None,
            }
        }


def describe_grid(grid: Grid) -> dict[str, Any]:
    """Return what mlx-lm calls a grid."""
    mode = "mxfp4" if isinstance(grid, FloatGrid) else "affine"
    return {"group_size": grid.group, "bits": grid.bits, "mode": mode}


def find_target(name: str, layout: Layout, group: int, dtype: torch.dtype) -> Target:
    """Return the form of a name of `BITS`.

    Raises:
        UsageError: if the layout does not have it.
    """
    if name == "mxfp4":
        if layout != "mlx" or group != FloatGrid().group:
            raise UsageError("mxfp4 is written for mlx, in groups of 32", "leave --for and --group out")
        return Target(name, layout, FloatGrid(), AffineGrid(ENDS_BITS, group, dtype))
    if name == "int5" and layout != "mlx":
        raise UsageError("int5 is written for mlx", "leave --for out")
    grid = AffineGrid(BITS[name], group, dtype, has_integer_zero=layout != "mlx")
    if layout != "mlx":
        return Target(name, layout, grid, ends=None)
    fine = replace(grid, bits=FINE_BITS) if name == MIX else None
    return Target(name, layout, grid, replace(grid, bits=ENDS_BITS), fine)


def pack_codes(codes: torch.Tensor, bits: int) -> torch.Tensor:
    """Return codes, uint8 [rows, n] of some bits, in words int32 [rows, n * bits / 32], the first one lowest."""
    codes = functional.pad(codes, (0, -codes.shape[1] % (32 // gcd(bits, 32))))
    return torch.cat([_pack_rows(rows, bits) for rows in codes.split(ROWS)])


def _pack_rows(codes: torch.Tensor, bits: int) -> torch.Tensor:
    digits = np.unpackbits(codes.numpy()[..., None], axis=-1, count=bits, bitorder="little")
    return torch.from_numpy(np.packbits(digits.reshape(len(codes), -1), axis=1, bitorder="little")).view(torch.int32)

"""Arranges weights for the compiled library: panels of 16 outputs, specified in ``csrc/kernels.h``."""

from __future__ import annotations

import torch
from torch.nn import functional

from parallax_backend_torch.kernels.quantize import GROUP, Quantized

PANEL = 16


def arrange_weight(weight: torch.Tensor | Quantized) -> torch.Tensor:
    """Return the panels of a weight [out, in], one per row: float32, bfloat16, or uint8 for codes."""
    if isinstance(weight, Quantized):
        return _arrange_codes(weight)
    panels = split_panels(weight)
    if weight.dtype == torch.float32:
        return panels.transpose(1, 2).flatten(1).contiguous()
    pairs = functional.pad(panels, (0, panels.shape[2] % 2)).unflatten(2, (-1, 2))
    return pairs.permute(0, 2, 1, 3).flatten(1).contiguous()


def split_panels(rows: torch.Tensor) -> torch.Tensor:
    """Return [out, n] as [panels, 16, n], with the last panel padded with zeros."""
    return functional.pad(rows, (0, 0, 0, -rows.shape[0] % PANEL)).unflatten(0, (-1, PANEL))


def _arrange_halves(values: torch.Tensor) -> torch.Tensor:
    """Return float16 [out, groups] as uint8 [panels, groups, 32], with the 16 values of a panel adjacent."""
    return split_panels(values).transpose(1, 2).contiguous().view(torch.uint8)


def _arrange_codes(weight: Quantized) -> torch.Tensor:
    halves = [_arrange_halves(each) for each in (weight.scale, weight.low) if each is not None]
    codes = _arrange_nibbles(weight.codes) if weight.kind == "int4" else _arrange_bytes(weight.codes)
    return torch.cat([*halves, codes], dim=2).flatten(1)


def _arrange_bytes(codes: torch.Tensor) -> torch.Tensor:
    pairs = split_panels(codes).unflatten(2, (-1, GROUP // 2, 2)).permute(0, 2, 3, 1, 4)
    return pairs.flatten(2).contiguous().view(torch.uint8)


def _arrange_nibbles(codes: torch.Tensor) -> torch.Tensor:
    split = split_panels(codes).unflatten(2, (-1, 4, 2, 4)).unflatten(1, (2, 8))
    lined = split.permute(0, 3, 1, 4, 2, 6, 5)
    return (lined[..., 0] | lined[..., 1] << 4).flatten(2)

"""Rounds weights to llama.cpp's K-quants: blocks of 256 whose groups have scales of 6 or 8 bits.

The search of scales is that of its reference code, and the layout of bytes that of ``gguf.quants``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

BLOCK = 256
"""Weights of a block."""
TINY = 1e-15
"""Below it, a group counts as zeros."""
Shape = tuple[int, float, int]
SHIFTED: Mapping[str, Shape] = {"Q4_K": (15, -1.0, 21), "Q5_K": (31, -0.5, 16)}
"""The largest code, and the first and the number of the ranges that are tried, each 0.1 of a code wider."""
TRIED = [step for step in range(-9, 10) if step]
MOST_SCALE, MOST_SIGNED = 63, 128
"""The largest code of a scale of 6 bits, and of the least one of 8 bits with a sign."""


def quantize(kind: str, rows: torch.Tensor) -> torch.Tensor:
    """Return the bytes of rows.

    Args:
        kind: ``Q4_K``, ``Q5_K`` or ``Q6_K``.
        rows: float32 [n, width], the width in whole blocks.

    Returns:
        uint8 [n, bytes of a row].
    """
    blocks = rows.reshape(-1, BLOCK)
    return KINDS[kind](kind, blocks).reshape(len(rows), -1)


def _quantize_shifted(kind: str, blocks: torch.Tensor) -> torch.Tensor:
    """Return blocks whose groups of 32 have a scale and a least number."""
    groups = blocks.reshape(-1, 8, 32)
    scales, lows = _fit_shifted(groups, *SHIFTED[kind])
    d, scale_codes = _encode_scales(scales)
    least, low_codes = _encode_scales(lows)
    step = (d.float() * scale_codes)[..., None]
    offset = (least.float() * low_codes)[..., None]
    codes = ((groups + offset) / step.where(step > 0, 1)).round().clamp(0, SHIFTED[kind][0])
    codes = codes.where(step > 0, 0).to(torch.uint8)
    head = [_to_bytes(d), _to_bytes(least), _pack_scales(scale_codes, low_codes)]
    pairs = (codes & 15).reshape(-1, 4, 2, 32)
    if kind == "Q5_K":
        shifts = torch.arange(8, dtype=torch.uint8)[:, None]
        head.append(((codes >> 4) << shifts).sum(1, dtype=torch.uint8))
    return torch.cat([*head, (pairs[:, :, 0] | pairs[:, :, 1] << 4).flatten(1)], 1)


def _fit_shifted(groups: torch.Tensor, top: int, first: float, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the scale of each group, and what is taken from its numbers, both at least 0."""
    weights = groups.square().mean(-1, keepdim=True).sqrt() + groups.abs()
    low, high = groups.amin(-1, keepdim=True).clamp(max=0), groups.amax(-1, keepdim=True)
    spread = (high - low).clamp(min=TINY)
    sums = (weights.sum(-1, keepdim=True), (weights * groups).sum(-1, keepdim=True))
    best = (spread / top, low)
    codes = ((groups - low) / best[0]).round().clamp(0, top)
    least = _measure(weights, codes, groups, *best)
    for step in range(count):
        codes = ((groups - low) * ((first + 0.1 * step + top) / spread)).round().clamp(0, top)
        found = _solve(weights, codes, groups, sums)
        error = _measure(weights, codes, groups, *found)
        is_less = error < least
        least = error.where(is_less, least)
        best = (found[0].where(is_less, best[0]), found[1].where(is_less, best[1]))
    is_flat = high <= low
    return best[0].where(~is_flat, 0)[..., 0].clamp(min=0), -best[1][..., 0]


def _solve(
    weights: torch.Tensor, codes: torch.Tensor, groups: torch.Tensor, sums: tuple[torch.Tensor, torch.Tensor]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return scale and low of least weighted error for codes; low is at most 0."""
    weighed = weights * codes
    first, second = weighed.sum(-1, keepdim=True), (weighed * codes).sum(-1, keepdim=True)
    mixed = (weighed * groups).sum(-1, keepdim=True)
    total, plain = sums
    divisor = total * second - first * first
    is_sound = divisor > 0
    divisor = divisor.where(is_sound, 1)
    scale, low = (total * mixed - plain * first) / divisor, (second * plain - first * mixed) / divisor
    is_above = low > 0
    alone = mixed / second.where(second > 0, 1)
    scale, low = alone.where(is_above, scale), low.clamp(max=0)
    return scale.where(is_sound, torch.inf), low


def _measure(
    weights: torch.Tensor, codes: torch.Tensor, groups: torch.Tensor, scale: torch.Tensor, low: torch.Tensor
) -> torch.Tensor:
    error = (weights * (scale * codes + low - groups).square()).sum(-1, keepdim=True)
    return error.nan_to_num(torch.inf)


def _encode_scales(values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the unit of each block, float16 [n, 1], and the codes of 6 bits, uint8 [n, 8]."""
    most = values.amax(-1, keepdim=True)
    codes = (values * (MOST_SCALE / most.where(most > 0, 1))).round().clamp(0, MOST_SCALE)
    return (most / MOST_SCALE).half(), codes.to(torch.uint8)


def _pack_scales(scales: torch.Tensor, lows: torch.Tensor) -> torch.Tensor:
    """Return 12 bytes for eight scales and eight lows."""
    first = scales[:, :4] | scales[:, 4:] >> 4 << 6
    second = lows[:, :4] | lows[:, 4:] >> 4 << 6
    return torch.cat([first, second, (scales[:, 4:] & 15) | (lows[:, 4:] & 15) << 4], 1)


def _quantize_signed(kind: str, blocks: torch.Tensor) -> torch.Tensor:  # noqa: ARG001 -- as the others
    """Return blocks of Q6_K, whose groups of 16 have a scale with a sign."""
    groups = blocks.reshape(-1, 16, 16)
    scales = _fit_signed(groups, 32)
    most = scales.gather(1, scales.abs().argmax(1, keepdim=True))
    unit = most.where(most.abs() > TINY, 1) / -MOST_SIGNED
    codes = (scales / unit).round().clamp(-MOST_SIGNED, MOST_SIGNED - 1)
    d = unit.where(most.abs() > TINY, 0).half()
    step = (d.float() * codes)[..., None]
    values = ((groups / step.where(step != 0, 1)).round().clamp(-32, 31).where(step != 0, 0) + 32).to(torch.uint8)
    rows = values.reshape(-1, 8, 32)
    low, high = (rows & 15).reshape(-1, 2, 2, 64), (rows >> 4).reshape(-1, 2, 4, 32)
    shifts = torch.arange(0, 8, 2, dtype=torch.uint8)[:, None]
    parts = [(low[:, :, 0] | low[:, :, 1] << 4).flatten(1), (high << shifts).sum(2, dtype=torch.uint8).flatten(1)]
    return torch.cat([*parts, codes.to(torch.int8).view(torch.uint8), _to_bytes(d)], 1)


def _fit_signed(groups: torch.Tensor, top: int) -> torch.Tensor:
    """Return the scale of each group of least error, weighted by the squares of its numbers."""
    most = groups.gather(-1, groups.abs().argmax(-1, keepdim=True))
    is_zero = most.abs() < TINY
    safe, weights = most.where(~is_zero, 1), groups.square()
    best_scale, best = torch.zeros_like(most), torch.full_like(most, -1.0)
    for step in (0, *TRIED):
        codes = (groups * (-(top + 0.1 * step) / safe)).round().clamp(-top, top - 1)
        mixed = (weights * groups * codes).sum(-1, keepdim=True)
        second = (weights * codes * codes).sum(-1, keepdim=True)
        gain = mixed.square() / second.where(second > 0, torch.inf)
        is_more = gain > best
        best = gain.where(is_more, best)
        best_scale = (mixed / second.where(second > 0, torch.inf)).where(is_more, best_scale)
    return best_scale.where(~is_zero, 0)[..., 0]


def _to_bytes(units: torch.Tensor) -> torch.Tensor:
    return units.contiguous().view(torch.uint8)


KINDS: Mapping[str, Callable[[str, torch.Tensor], torch.Tensor]] = {
    "Q4_K": _quantize_shifted,
    "Q5_K": _quantize_shifted,
    "Q6_K": _quantize_signed,
}
"""What quantises blocks, float32 [n, 256], by the name of a type."""

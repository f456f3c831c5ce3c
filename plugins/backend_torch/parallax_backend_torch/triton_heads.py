"""Norms and rope of queries and keys, and the store of keys and values, in one Triton kernel."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from triton.language.extra import cuda as device

from parallax_backend_torch.triton_products import Factors, overlaps

HEADS = 8
"""The most heads of a token that a program works on."""


def place_heads(
    mixed: torch.Tensor,
    angles: tuple[torch.Tensor, torch.Tensor],
    pool: tuple[torch.Tensor, torch.Tensor],
    slots: torch.Tensor,
    norms: Sequence[Factors],
) -> None:
    """Normalise and rotate queries in place, and write keys, normalised and rotated, and values to their slots.

    Args:
        mixed: the queries, keys and values of each token, [tokens, heads, width], contiguous.
        angles: the cosines and sines of each token, float32 of shape [tokens, half] each, contiguous.
        pool: keys and values, [slots, kv_heads, width] each, contiguous and of the dtype of ``mixed``.
        slots: the slot of each token, int64 of shape [tokens].
        norms: the norms of queries and of keys; empty without norms.
    """
    (cos, sin), (keys, values) = angles, pool
    (tokens, heads, width), kv_heads, half = mixed.shape, keys.shape[1], cos.shape[1]
    queries = heads - 2 * kv_heads
    at_once = min(HEADS, triton.next_power_of_2(queries))
    parts = triton.cdiv(queries, at_once) + 2 * triton.cdiv(kv_heads, at_once)
    factors = [each.weight for each in norms] or [cos, cos]
    eps, offset = (norms[0].eps, norms[0].offset) if norms else (0.0, 0.0)
    is_new = overlaps(mixed.device)
    if tokens:
        with torch.cuda.device_of(mixed):
            _place[(tokens, parts)](
                *(mixed, cos, sin, keys, values, slots, *factors),
                *(queries, kv_heads, half, eps, offset),
                *(at_once, width, triton.next_power_of_2(width), triton.next_power_of_2(half)),
                *(bool(norms), 2 * half < width, is_new),
                num_warps=2,
                launch_pdl=is_new,
            )


@triton.jit
def _place(
    mixed: tl.tensor,
    cos: tl.tensor,
    sin: tl.tensor,
    keys: tl.tensor,
    values: tl.tensor,
    slots: tl.tensor,
    query_factors: tl.tensor,
    key_factors: tl.tensor,
    queries: tl.tensor,
    kv_heads: tl.tensor,
    half: tl.tensor,
    eps: tl.tensor,
    offset: tl.tensor,
    HEADS: tl.constexpr,
    WIDTH: tl.constexpr,
    PADDED_WIDTH: tl.constexpr,
    HALF: tl.constexpr,
    HAS_NORM: tl.constexpr,
    HAS_REST: tl.constexpr,
    IS_NEW: tl.constexpr,
) -> None:
    token, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    lane, wide_lane, head = tl.arange(0, HALF), tl.arange(0, PADDED_WIDTH), tl.arange(0, HEADS)
    query_parts, kv_parts = tl.cdiv(queries, HEADS), tl.cdiv(kv_heads, HEADS)
    if IS_NEW:  # angles and slots, too, may be results of the kernel before
        device.gdc_launch_dependents()
        device.gdc_wait()
    cosines = tl.load(cos + token * half + lane, mask=lane < half, other=0.0)[None, :]
    sines = tl.load(sin + token * half + lane, mask=lane < half, other=0.0)[None, :]
    slot = tl.load(slots + token)
    row = mixed + token * (queries + 2 * kv_heads) * WIDTH
    if part >= query_parts + kv_parts:
        value_head = head + (part - query_parts - kv_parts) * HEADS
        is_number = (value_head < kv_heads)[:, None] & (wide_lane < WIDTH)[None, :]
        number = value_head[:, None] * WIDTH + wide_lane[None, :]
        found = tl.load(row + (queries + kv_heads) * WIDTH + number, mask=is_number, other=0.0)
        tl.store(values + slot * kv_heads * WIDTH + number, found, mask=is_number)
    else:
        is_query = part < query_parts
        head += tl.where(is_query, part, part - query_parts) * HEADS
        is_head = (head < tl.where(is_query, queries, kv_heads))[:, None]
        base = row + tl.where(is_query, 0, queries) * WIDTH
        place, inside = head[:, None] * WIDTH + lane[None, :], is_head & (lane < half)[None, :]
        first = tl.load(base + place, mask=inside, other=0.0).to(tl.float32)
        second = tl.load(base + place + half, mask=inside, other=0.0).to(tl.float32)
        wide_place, is_rest = head[:, None] * WIDTH + wide_lane[None, :], is_head & (wide_lane < WIDTH)[None, :]
        if HAS_NORM or HAS_REST:
            whole = tl.load(base + wide_place, mask=is_rest, other=0.0).to(tl.float32)
        if HAS_NORM:
            scale = tl.rsqrt(tl.sum(whole * whole, 1) / WIDTH + eps)[:, None]
            factors = key_factors
            if is_query:
                factors = query_factors
            first = first * scale * (tl.load(factors + lane, mask=lane < half, other=0.0) + offset)[None, :]
            second = second * scale * (tl.load(factors + half + lane, mask=lane < half, other=0.0) + offset)[None, :]
            whole_factors = tl.load(factors + wide_lane, mask=wide_lane < WIDTH, other=0.0) + offset
            whole = whole * scale * whole_factors[None, :]
        target = base
        if not is_query:
            target = keys + slot * kv_heads * WIDTH
        tl.debug_barrier()  # all of a head is read before it is written
        if HAS_REST:
            is_rest = is_rest & (wide_lane >= 2 * half)[None, :]
            tl.store(target + wide_place, whole.to(mixed.dtype.element_ty), mask=is_rest)
        tl.store(target + place, (first * cosines - second * sines).to(mixed.dtype.element_ty), mask=inside)
        tl.store(target + place + half, (second * cosines + first * sines).to(mixed.dtype.element_ty), mask=inside)

"""Causal attention of a ragged batch over keys and values in pages."""

from __future__ import annotations

import ctypes

import torch

from parallax_backend_torch.kernels.library import find_library
from parallax_backend_torch.kernels.paging import Pool, Rows, Rule, attend_plainly
from parallax_backend_torch.kernels.signature import AttentionRecord

__all__ = ["Pool", "Rows", "Rule", "attend", "store"]

POOL_KINDS = {torch.float32: 0, torch.bfloat16: 1, torch.int8: 2}
WIDEST = 256
"""The widest head of the compiled kernel."""
LEAST_SCALE = 1e-30
"""The least scale of int8: smaller numbers are stored as 0."""
MOST_SHARED = 32
"""The most query heads that share keys in the compiled kernel."""


def attend(query: torch.Tensor, pool: Pool, rows: Rows, rule: Rule) -> torch.Tensor:
    """Return the attention to keys and values in place; those of the step are stored already.

    Args:
        query: float32 [tokens, heads, dim], tokens in row order, the last two dimensions contiguous; heads is a
            multiple of the pool's, and heads that follow each other share keys.
        pool: keys and values by slot.
        rows: the rows of the step.
        rule: the tokens that a query sees, and the scores.

    Returns:
        float32 [tokens, heads, dim], contiguous.
    """
    check_attention(query, pool, rows, rule)
    library = find_library()
    if library is None or not is_native(query, pool):
        return attend_plainly(query, pool, rows, rule)
    out = torch.empty(query.shape)
    record = make_record(pool, query.shape[1], rule)
    record.query, record.query_stride, record.out = query.data_ptr(), query.stride(0), out.data_ptr()
    record.table = ctypes.pointer(rows.record)
    library.plx_attend(record)
    return out


def make_record(pool: Pool, heads: int, rule: Rule) -> AttentionRecord:
    """Return the record of an attention for the compiled library, without queries, rows and output."""
    return AttentionRecord(
        keys=pool.keys.data_ptr(),
        values=pool.values.data_ptr(),
        key_scales=None if pool.key_scales is None else pool.key_scales.data_ptr(),
        value_scales=None if pool.value_scales is None else pool.value_scales.data_ptr(),
        kind=POOL_KINDS[pool.keys.dtype],
        heads=heads,
        kv_heads=pool.keys.shape[1],
        dim=pool.keys.shape[2],
        sinks=None if rule.sinks is None else rule.sinks.data_ptr(),
        scale=rule.scale,
        cap=rule.soft_cap,
        window=rule.window,
        narrow=rule.narrow,
    )


def store(pool: Pool, keys: torch.Tensor, values: torch.Tensor, slots: torch.Tensor) -> None:
    """Write the keys and values of a step into its slots, rounded to the dtype of the pool: see `quantize_heads`.

    Args:
        pool: the pool to write to.
        keys: float32 [tokens, kv_heads, dim], the last two dimensions contiguous.
        values: as ``keys``.
        slots: int64 [tokens].
    """
    _store_into(pool.keys, pool.key_scales, keys, slots)
    _store_into(pool.values, pool.value_scales, values, slots)


def _store_into(pool: torch.Tensor, scales: torch.Tensor | None, rows: torch.Tensor, slots: torch.Tensor) -> None:
    tokens, heads, dim = rows.shape
    if pool.shape[1:] != rows.shape[1:] or slots.shape != (tokens,) or slots.dtype != torch.int64:
        raise ValueError(f"slots {list(slots.shape)} and rows {list(rows.shape)} do not fit a pool {list(pool.shape)}")
    library = find_library()
    known = pool.dtype in POOL_KINDS and pool.is_contiguous() and rows.dtype == torch.float32
    if library is None or not known or rows.stride(2) != 1 or rows.stride(1) != dim:
        if scales is None:
            pool[slots] = rows.to(pool.dtype)
        else:
            pool[slots], scales[slots] = quantize_heads(rows)
        return
    target = POOL_KINDS[pool.dtype], pool.data_ptr(), None if scales is None else scales.data_ptr()
    library.plx_store(rows.data_ptr(), rows.stride(0), slots.data_ptr(), tokens, heads, dim, *target)


def quantize_heads(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Round each head of each token to codes: its largest magnitude / 127, in bfloat16, is its scale.

    Returns:
        int8 [tokens, heads, dim], and the scales, bfloat16 [tokens, heads]: 0 if all numbers are less than about
        1e-28, NaN if one is not finite, so that everything computed from it is NaN too.
    """
    is_finite = rows.isfinite().all(-1)
    scales = (rows.abs().amax(-1) / 127).bfloat16()
    steps = scales.float()
    inverse = torch.where(is_finite & (steps >= LEAST_SCALE), 1 / steps, 0)
    codes = torch.where(is_finite[..., None], rows * inverse[..., None], 0).round().clamp(-127, 127).to(torch.int8)
    return codes, torch.where(is_finite, torch.where(inverse > 0, scales, 0), torch.nan)


def check_attention(query: torch.Tensor, pool: Pool, rows: Rows, rule: Rule) -> None:
    """Refuse shapes that do not fit together.

    Raises:
        ValueError: naming the shapes.
    """
    tokens, heads, dim = query.shape
    kv_heads = pool.keys.shape[1]
    if pool.keys.shape != pool.values.shape or pool.keys.shape[2] != dim or heads % kv_heads:
        raise ValueError(f"queries {list(query.shape)} do not fit keys {list(pool.keys.shape)}")
    if rows.num_tokens != tokens:
        raise ValueError(f"the rows have {rows.num_tokens} tokens, and there are {tokens} queries")
    if rule.sinks is not None and (rule.sinks.dtype != torch.float32 or rule.sinks.shape != (heads,)):
        raise ValueError(f"sinks are float32 [{heads}]")


def is_native(query: torch.Tensor, pool: Pool) -> bool:
    """Whether the compiled kernel supports these heads: widths of a multiple of 8 up to 256, up to 32 sharing keys."""
    _, heads, dim = query.shape
    packed = query.dtype == torch.float32 and query.stride(2) == 1 and query.stride(1) == dim
    pooled = pool.keys.dtype in POOL_KINDS and pool.is_contiguous
    return packed and pooled and dim % 8 == 0 and dim <= WIDEST and heads // pool.keys.shape[1] <= MOST_SHARED

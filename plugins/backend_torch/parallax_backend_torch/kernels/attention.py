"""Causal attention of a ragged batch over keys and values that lie in pages."""

from __future__ import annotations

import torch

from parallax_backend_torch.kernels.paging import Pool, Rows, Rule, attend_plainly

__all__ = ["Pool", "Rows", "Rule", "attend", "store"]


def attend(query: torch.Tensor, pool: Pool, rows: Rows, rule: Rule) -> torch.Tensor:
    """Attend to keys and values where they lie; those of the step itself are stored already.

    Args:
        query: float32 [tokens, heads, dim], tokens in row order, the last two dimensions contiguous; heads is a
            multiple of the pool's, and heads that follow each other share keys.
        pool: keys and values by slot.
        rows: the rows of the step.
        rule: what a query sees.

    Returns:
        float32 [tokens, heads, dim], contiguous.
    """
    return attend_plainly(query, pool, rows, rule)


def store(pool: Pool, keys: torch.Tensor, values: torch.Tensor, slots: torch.Tensor) -> None:
    """Write the keys and values of a step into its slots, rounded to the dtype of the pool.

    Args:
        pool: where to.
        keys: float32 [tokens, kv_heads, dim], the last two dimensions contiguous.
        values: the same.
        slots: int64 [tokens].
    """
    pool.keys[slots] = keys.to(pool.keys.dtype)
    pool.values[slots] = values.to(pool.values.dtype)

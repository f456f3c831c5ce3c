"""Attention over pages in plain torch, one row at a time; used without the compiled library."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import torch

from parallax_backend_torch.kernels.signature import TableRecord


@dataclass(frozen=True, eq=False)
class Rows:
    """The page tables of a step's rows: row r has ``lengths[r]`` queries, at positions ``starts[r] ...``.

    The key of position p of row r is in slot ``pages[offsets[r] + p // page_size] * page_size + p % page_size``. Only
    positions that some query sees are looked up, so positions before a window need no page: a table may begin later,
    with ``offsets`` shifted to match (they may be negative).
    """

    pages: torch.Tensor
    """int32 [any]: the page tables of all rows."""
    offsets: torch.Tensor
    """int32 [rows]: the index in ``pages`` at which the table of a row begins."""
    starts: torch.Tensor
    """int32 [rows]: the position of a row's first query."""
    lengths: torch.Tensor
    """int32 [rows]: the number of a row's queries; their sum is the number of tokens of the step."""
    page_size: int
    """Slots per page."""

    @cached_property
    def num_tokens(self) -> int:
        """The number of tokens of the step.

        Raises:
            ValueError: the tables are not contiguous int32 on the CPU, or differ in length.
        """
        tables = (self.pages, self.offsets, self.starts, self.lengths)
        if any(each.dtype != torch.int32 or not each.is_contiguous() or each.device.type != "cpu" for each in tables):
            raise ValueError("pages, offsets, starts and lengths must be contiguous int32 on the CPU")
        if not len(self.offsets) == len(self.starts) == len(self.lengths):
            raise ValueError("offsets, starts and lengths must have one number for each row")
        return int(self.lengths.sum())

    @cached_property
    def record(self) -> TableRecord:
        """The record of the tables for the compiled library."""
        places = (each.data_ptr() for each in (self.pages, self.offsets, self.starts, self.lengths))
        return TableRecord(*places, len(self.starts), self.page_size)


@dataclass(frozen=True, slots=True)
class Rule:
    """The tokens that a query sees, and the function from scores to weights."""

    scale: float
    """The factor of the product of query and key."""
    window: int = 0
    """The number of positions that a query sees, including its own; 0: all up to its own."""
    soft_cap: float = 0.0
    """Scores become ``cap * tanh(score / cap)``; 0: no cap."""
    sinks: torch.Tensor | None = None
    """float32 [heads]: an extra score in the softmax of each head, without a value; None: no sinks."""
    narrow: bool = False
    """Whether queries and weights may be rounded to bfloat16, for products with bfloat16 or int8 keys and values."""


@dataclass(frozen=True, slots=True)
class Pool:
    """Keys and values of a layer, by slot."""

    keys: torch.Tensor
    """float32, bfloat16 or int8 [slots, kv_heads, dim], contiguous."""
    values: torch.Tensor
    """The same."""
    key_scales: torch.Tensor | None = None
    """Of int8: bfloat16 [slots, kv_heads], contiguous, the factors from codes to numbers; else None."""
    value_scales: torch.Tensor | None = None
    """The same."""

    def read(self, slots: torch.Tensor) -> Pool:
        """Return the keys and values of some slots, in float32."""
        keys, values = self.keys[slots].float(), self.values[slots].float()
        if self.key_scales is None or self.value_scales is None:
            return Pool(keys, values)
        return Pool(
            keys * self.key_scales[slots].float()[..., None], values * self.value_scales[slots].float()[..., None]
        )

    @property
    def is_contiguous(self) -> bool:
        """Whether all tensors are contiguous."""
        return all(
            each is None or each.is_contiguous()
            for each in (self.keys, self.values, self.key_scales, self.value_scales)
        )


def attend_plainly(query: torch.Tensor, pool: Pool, rows: Rows, rule: Rule) -> torch.Tensor:
    """Compute ``attention.attend`` in plain torch."""
    out = torch.empty(query.shape, dtype=torch.float32)
    done = 0
    for row, (start, length) in enumerate(zip(rows.starts.tolist(), rows.lengths.tolist(), strict=True)):
        if length:
            span = slice(done, done + length)
            first = max(0, start - rule.window + 1) if rule.window else 0
            slots = find_slots(rows, row, first, start + length)
            visible = mark_visible(
                torch.arange(start, start + length), torch.arange(first, start + length), rule.window
            )
            out[span] = _attend_row(query[span], pool.read(slots), visible, rule)
            done += length
    return out


def find_slots(rows: Rows, row: int, first: int, stop: int) -> torch.Tensor:
    """Return the slots of positions ``first`` to ``stop`` of a row, int64 [stop - first]."""
    positions = torch.arange(first, stop)
    pages = rows.pages[int(rows.offsets[row]) + positions // rows.page_size].long()
    return pages * rows.page_size + positions % rows.page_size


def mark_visible(queries: torch.Tensor, keys: torch.Tensor, window: int) -> torch.Tensor:
    """Return whether each query position sees each key position, bool [queries, keys]."""
    distance = queries[:, None] - keys[None, :]
    seen = distance >= 0
    return seen & (distance < window) if window else seen


def _attend_row(query: torch.Tensor, seen: Pool, visible: torch.Tensor, rule: Rule) -> torch.Tensor:
    tokens, heads, dim = query.shape
    grouped = query.view(tokens, seen.keys.shape[1], -1, dim)
    scores = torch.einsum("tkgd,skd->kgts", grouped, seen.keys) * rule.scale
    if rule.soft_cap:
        scores = torch.tanh(scores / rule.soft_cap) * rule.soft_cap
    scores = scores.masked_fill(~visible, -math.inf).reshape(heads, tokens, -1)
    if rule.sinks is not None:
        scores = torch.cat([scores, rule.sinks[:, None, None].expand(-1, tokens, 1)], dim=-1)
    weights = torch.softmax(scores, dim=-1)[..., : visible.shape[1]].unflatten(0, (seen.keys.shape[1], -1))
    return torch.einsum("kgts,skd->tkgd", weights, seen.values).reshape(tokens, heads, dim)

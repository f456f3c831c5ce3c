"""How many pages each pool has: the memory there is, shared out so that no pool runs dry long before the others."""

from __future__ import annotations

import math
from dataclasses import dataclass

from parallax_backend_mlx.layout import Kind, Layout
from parallax_core.api import OutOfPages, PoolInfo

PAGE_SIZE = 16
"""Tokens per page."""
REWIND = 64
"""How far behind its end a sequence with windows can be forked or truncated."""
CHECKPOINT = 256
"""Where chunks of sequences with states end, so that what begins alike can be shared."""
MAX_SEQUENCES = 256
"""Memory for more sequences of full length than this is left to others."""
TYPICAL = 1024
"""Tokens of a sequence by which memory is shared out between pools."""


@dataclass(frozen=True, slots=True)
class Need:
    """What one pool could do with."""

    kind: Kind
    window: int
    page_bytes: int
    pages_each: int
    """Pages of a typical sequence."""
    most: int
    """Pages beyond which there is no use."""


def plan_pools(layout: Layout, num_bytes: float, context_length: int, chunk: int) -> tuple[PoolInfo, ...]:
    """Return the pools for ``layout`` that fit ``num_bytes``.

    Args:
        layout: what is kept of a sequence.
        num_bytes: memory for all pools.
        context_length: the longest sequence, in tokens.
        chunk: the most tokens in a step.

    Raises:
        OutOfPages: if not even one page of each fits.
    """
    needs = [_find_need(layout, pool, context_length, chunk) for pool in layout.list_pools()]
    counts = _share_out(needs, num_bytes)
    if sum(count * need.page_bytes for need, count in zip(needs, counts, strict=True)) > num_bytes:
        raise OutOfPages(1, 0)
    return tuple(_make_info(need, count) for need, count in zip(needs, counts, strict=True))


def plan_account(page_bytes: int, page_size: int, num_bytes: float, context_length: int) -> PoolInfo:
    """Return the pool that accounts for sequences with memory of their own, which share nothing.

    Raises:
        OutOfPages: if not even one page fits.
    """
    pages = min(int(num_bytes // page_bytes), MAX_SEQUENCES * math.ceil(context_length / page_size))
    if pages < 1:
        raise OutOfPages(1, 0)
    return PoolInfo(kind="full", page_size=page_size, num_pages=pages, shares=False)


def _find_need(layout: Layout, pool: tuple[Kind, int], context_length: int, chunk: int) -> Need:
    kind, window = pool
    if kind == "state":
        return Need(kind, window, layout.count_bytes(pool), 1, MAX_SEQUENCES)
    longest = context_length
    if kind == "window":
        longest = min(longest, window + REWIND + chunk + PAGE_SIZE)
    typical = min(longest, TYPICAL)
    pages_each, most = math.ceil(typical / PAGE_SIZE), MAX_SEQUENCES * math.ceil(longest / PAGE_SIZE)
    return Need(kind, window, layout.count_bytes(pool) * PAGE_SIZE, pages_each, most)


def _share_out(needs: list[Need], num_bytes: float) -> list[int]:
    """Return the pages of each pool: as many typical sequences as fit; what one has no use for, the others get."""
    counts = [0] * len(needs)
    open_ones = set(range(len(needs)))
    while open_ones:
        taken = [counts[index] * need.page_bytes for index, need in enumerate(needs) if index not in open_ones]
        each = sum(needs[index].page_bytes * needs[index].pages_each for index in open_ones)
        for index in open_ones:
            counts[index] = max(1, int((num_bytes - sum(taken)) * needs[index].pages_each // each))
        full = {index for index in open_ones if counts[index] >= needs[index].most}
        for index in full:
            counts[index] = needs[index].most
        if not full:
            break
        open_ones -= full
    return counts


def _make_info(need: Need, num_pages: int) -> PoolInfo:
    if need.kind == "state":
        return PoolInfo(kind="state", page_size=1, num_pages=num_pages, checkpoint_every=CHECKPOINT)
    rewind = REWIND if need.kind == "window" else 0
    return PoolInfo(kind=need.kind, page_size=PAGE_SIZE, num_pages=num_pages, window=need.window, rewind=rewind)

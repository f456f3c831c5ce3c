"""The account of sequences that have memory of their own."""

from __future__ import annotations

import math

from parallax_core.api import OutOfPages, PoolInfo

MOST_SEQUENCES = 256
"""More of full length are of no use."""


def plan_account(page_bytes: int, page_size: int, num_bytes: float, context_length: int) -> PoolInfo:
    """Return the pool that accounts for sequences with memory of their own, which share nothing.

    Raises:
        OutOfPages: if not even one page fits.
    """
    pages = min(int(num_bytes // page_bytes), MOST_SEQUENCES * math.ceil(context_length / page_size))
    if pages < 1:
        raise OutOfPages(1, 0)
    return PoolInfo(kind="full", page_size=page_size, num_pages=pages, shares=False)

"""Plans the pool that accounts for sequences with separate memory."""

from __future__ import annotations

import math

from parallax_core.api import OutOfPages, PoolInfo

MOST_SEQUENCES = 256
"""The most sequences of full length to plan memory for."""


def plan_account(page_bytes: int, page_size: int, num_bytes: float, context_length: int) -> PoolInfo:
    """Return the pool that accounts for sequences with separate memory, which share no pages.

    Raises:
        OutOfPages: if not even one page fits.
    """
    pages = min(int(num_bytes // page_bytes), MOST_SEQUENCES * math.ceil(context_length / page_size))
    if pages < 1:
        raise OutOfPages(1, 0)
    return PoolInfo(kind="full", page_size=page_size, num_pages=pages, shares=False)

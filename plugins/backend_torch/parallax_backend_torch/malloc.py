"""Sets how much freed memory the C library keeps: little during loading, much during steps."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator
from contextlib import contextmanager

MMAP_THRESHOLD, TRIM_THRESHOLD = -3, -1
"""Parameters of ``mallopt`` of the GNU C library."""
LEAN = 2**21
ROOMY = 2**25
"""Bytes from which memory is mapped separately and returned to the system when freed: while loading, and afterwards.
The larger one is the maximum, which the library's own adjustment reaches too after large pieces were freed."""
KEPT = 4
"""The number of such pieces that the library keeps: with none, most of the time goes into system calls."""


@contextmanager
def load_leanly() -> Iterator[None]:
    """Keep little memory of freed tensors inside the ``with`` block, and more after it.

    Does nothing without the GNU C library.
    """
    adjust = _find_adjust()
    if adjust is None:
        yield
        return
    adjust(MMAP_THRESHOLD, LEAN)
    adjust(TRIM_THRESHOLD, KEPT * LEAN)
    try:
        yield
    finally:
        adjust(MMAP_THRESHOLD, ROOMY)
        adjust(TRIM_THRESHOLD, 2 * ROOMY)


def _find_adjust() -> ctypes._NamedFuncPointer | None:
    if sys.platform != "linux":
        return None
    return getattr(ctypes.CDLL(None), "mallopt", None)

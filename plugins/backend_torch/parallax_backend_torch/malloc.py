"""How the C library keeps memory that was freed: little of it while weights are loaded, much while steps run."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator
from contextlib import contextmanager

MMAP_THRESHOLD, TRIM_THRESHOLD = -3, -1
"""Parameters of ``mallopt`` of the GNU C library."""
LEAN = 2**21
ROOMY = 2**25
"""From how many bytes on a piece of memory is the system's, and given back when it is freed. The larger one is the most
there may be, and where the library's own adjustment ends up when it sees large pieces come and go."""
KEPT = 4
"""How many such pieces the library keeps for the next ones: with none, most of the time goes into asking the system."""


@contextmanager
def load_leanly() -> Iterator[None]:
    """Keep little of the memory of temporary tensors meanwhile, and more of it afterwards.

    Elsewhere than on the GNU C library nothing changes.
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

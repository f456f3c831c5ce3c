"""Makes the C library keep the memory that steps free, for the next operation.

On a CPU MLX takes the memory of every array from ``malloc`` and frees it soon after. For large arrays glibc asks the
kernel each time, which clears every page: a fifth of the time of a prefill.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Mapping
from types import MappingProxyType

OPTIONS: Mapping[int, int] = MappingProxyType({-3: 32 << 20, -1: 512 << 20, -2: 64 << 20})
"""Options of ``mallopt``, in bytes: the size from which an array has a separate mapping (as large as glibc allows), the
free memory kept at the end of a heap, and the step by which a heap grows."""


def keep_memory() -> bool:
    """Keep freed memory in this process, up to half a GiB; return whether the C library supports that."""
    if sys.platform != "linux":
        return False
    adjust = getattr(ctypes.CDLL(None), "mallopt", None)
    return adjust is not None and all(adjust(*option) == 1 for option in OPTIONS.items())

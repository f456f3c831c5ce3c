"""Returns the memory that loading freed, and keeps what steps free for the next operation.

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
    """Return free memory to the system, and keep what is freed later in this process, up to half a GiB.

    Returns whether the C library supports that.
    """
    if sys.platform != "linux":
        return False
    library = ctypes.CDLL(None)
    adjust, trim = (getattr(library, name, None) for name in ("mallopt", "malloc_trim"))
    if trim is not None:
        trim(0)
    return adjust is not None and all(adjust(*option) == 1 for option in OPTIONS.items())

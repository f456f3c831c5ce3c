"""Limits the memory of this process."""

from __future__ import annotations

import resource
from contextlib import suppress
from pathlib import Path


def limit_memory(most: int) -> None:
    """Allow ``most`` bytes of address space beyond what this process has now; macOS does not enforce this."""
    with suppress(OSError, ValueError):  # not on this system
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
        limit = pages * resource.getpagesize() + most
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))

"""Allocates memory for packed weights: contiguous, in pages of 2 MiB if the system has them.

A step reads all weights once. With pages of 4 KiB, address translation makes that much slower.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterable

import torch

HUGE = 2 << 20
"""Bytes of a large page."""
BLOCK = 32 << 20
"""Bytes allocated at once; bytes that are never written take no memory."""
LINE = 64
"""Bytes of a cache line, at which weights begin."""


class Arena:
    """Allocates parts of large blocks; a block is freed with the last tensor in it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._block = torch.empty(0, dtype=torch.uint8)
        self._used = 0

    def place(self, library: ctypes.CDLL, parts: Iterable[torch.Tensor], height: int) -> torch.Tensor:
        """Return a copy of rows, given in one or more parts, as bytes in a block.

        Args:
            library: used to ask the system for large pages.
            parts: contiguous tensors whose rows have the same length.
            height: the total number of rows.
        """
        place, done = torch.empty(0, dtype=torch.uint8), 0
        for part in parts:
            data = part.flatten().view(torch.uint8)
            if not done:
                place = self._take(library, height * part.shape[1] * part.itemsize)
            place[done : done + len(data)] = data
            done += len(data)
        return place

    def _take(self, library: ctypes.CDLL, size: int) -> torch.Tensor:
        with self._lock:
            if self._used + size > len(self._block):
                self._block, self._used = open_block(library, max(size, BLOCK)), 0
            place = self._block[self._used : self._used + size]
            self._used += -(-size // LINE) * LINE
        return place


arena = Arena()
"""The arena of this process."""


def open_block(library: ctypes.CDLL, size: int) -> torch.Tensor:
    """Return uint8 [size], aligned to a large page; asks the system for large pages."""
    room = torch.empty(size + HUGE, dtype=torch.uint8)
    skipped = -room.data_ptr() % HUGE
    block = room[skipped : skipped + size]
    library.plx_enlarge(block.data_ptr(), len(block))
    return block

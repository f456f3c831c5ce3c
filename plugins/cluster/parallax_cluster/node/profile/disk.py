"""Measures how fast files are read from a disk, and how much of it is free."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

FILE_BYTES = 32 * 2**20
CHUNK_BYTES = 2**20
LIMIT_S = 0.3
TYPICAL = 1e9
"""Bytes per second of a disk that cannot be measured."""


def read_free(folder: Path) -> int:
    """Return the bytes that are free on the disk of a folder, which may not exist yet; 0: unknown."""
    existing = next((each for each in (folder, *folder.parents) if each.exists()), None)
    try:
        return shutil.disk_usage(existing).free if existing else 0
    except OSError:
        return 0


def measure_disk(folder: Path, limit_s: float = LIMIT_S) -> float:
    """Return the bytes per second at which a file in ``folder`` is read that is not in the page cache.

    It writes a file of 32 MiB, or less if that takes longer than ``limit_s``, and reads it for as long at most.
    Returns `TYPICAL` if that fails, as on a full disk.
    """
    try:
        with tempfile.NamedTemporaryFile(dir=folder, prefix="speed-") as file:
            _fill(file.fileno(), limit_s)
            _evict(file.fileno())
            return _time_reading(file.fileno(), limit_s)
    except OSError:
        return TYPICAL


def _fill(file: int, limit_s: float) -> None:
    end, chunk = time.perf_counter() + limit_s, os.urandom(CHUNK_BYTES)
    for _ in range(FILE_BYTES // CHUNK_BYTES):
        os.write(file, chunk)
        if time.perf_counter() > end:
            break
    os.fsync(file)


def _evict(file: int) -> None:
    """Make the system forget the pages of a file, or not keep them from now on."""
    if sys.platform == "darwin":
        import fcntl

        fcntl.fcntl(file, fcntl.F_NOCACHE, 1)
    elif sys.platform == "linux":
        with suppress(OSError):
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    os.lseek(file, 0, os.SEEK_SET)


def _time_reading(file: int, limit_s: float) -> float:
    begun, num_bytes = time.perf_counter(), 0
    while chunk := os.read(file, CHUNK_BYTES):
        num_bytes += len(chunk)
        if time.perf_counter() - begun > limit_s:
            break
    seconds = time.perf_counter() - begun
    return num_bytes / seconds if num_bytes and seconds > 0 else TYPICAL

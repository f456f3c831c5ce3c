"""Gives every stage on this machine its own GPU, across processes, if there are enough."""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

FOLDER = "parallax-gpus-{}"
"""The folder of the locks in the system's folder for temporary files, with the number of the user."""


@dataclass(slots=True)
class GpuClaim:
    """A device, and the lock that keeps other stages from choosing it; the lock ends with the process at the latest."""

    device: str
    """The name of the device, as the backend has it."""
    _lock: int | None = None
    """An open file."""

    def release(self) -> None:
        """Let others choose the device. Idempotent."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def claim_gpu(free: Mapping[str, int], folder: Path | None = None) -> GpuClaim:
    """Claim the GPU with the most free memory among those that no stage has claimed, or else among all.

    Args:
        free: the free bytes of each GPU, by its name.
        folder: holds the locks; None: a folder of this user.
    """
    ranked = sorted(free, key=lambda name: -free[name])
    try:
        folder = folder or _make_folder()
        for name in ranked:
            if (lock := _lock(folder / name.replace(":", "-"))) is not None:
                return GpuClaim(name, lock)
    except OSError:  # no folder for locks: processes that start together may choose the same
        pass
    return GpuClaim(ranked[0])


def _make_folder() -> Path:
    """Return the folder of the locks, which must belong to this user alone.

    Raises:
        PermissionError: if somebody else has made it.
    """
    folder = Path(tempfile.gettempdir()) / FOLDER.format(os.getuid())
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise PermissionError(f"{folder} belongs to somebody else")
    return folder


def _lock(path: Path) -> int | None:
    """Return an open file with an exclusive lock, or None if another has the lock."""
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(file)
        return None
    return file

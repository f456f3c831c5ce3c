"""Keeps files while any process uses them: by a lock, which ends with its process."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


class FileHold:
    """Keeps what a lock file stands for, until it is released.

    Args:
        path: the lock file; made if it is missing. Several may hold it at the same time.
    """

    def __init__(self, path: Path) -> None:
        self._file = _lock(path, fcntl.LOCK_SH)

    def release(self) -> None:
        """Keep it no more. Idempotent."""
        if self._file >= 0:
            os.close(self._file)
        self._file = -1


@contextmanager
def holding_alone(path: Path) -> Iterator[bool]:
    """Hold a lock file alone within the context, if that is possible, and say whether; then the file is removed."""
    try:
        file = _lock(path, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        yield False
        return
    try:
        yield True
    finally:
        path.unlink(missing_ok=True)  # who waits for it sees that, and makes another
        os.close(file)


def _lock(path: Path, how: int) -> int:
    while True:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(file, how)
            with suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(file), path.stat()):
                    return file
        except BaseException:
            os.close(file)
            raise
        os.close(file)  # it was removed meanwhile

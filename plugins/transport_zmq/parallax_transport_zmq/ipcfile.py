"""Restricts socket files to their owner, and removes those of processes that have died."""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from parallax_core.api import ParallaxError


@contextmanager
def claim_path(path: Path) -> Iterator[None]:
    """Lock the folder of ``path`` while a socket is bound there, and restrict the socket's file to its owner.

    Raises:
        ParallaxError: if other users can enter the folder, a process listens at ``path``, or it is not a socket.
    """
    folder = path.parent
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = folder.stat()
    if found.st_uid != os.getuid() or stat.S_IMODE(found.st_mode) & 0o077:
        message = f"other users can enter {folder}, so no socket is made there"
        raise ParallaxError(message, f"choose a folder of your own, or `chmod 700 {folder}`")
    lock = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two processes starting at once would each take the other's file for stale
        _remove_stale(path)
        yield
        path.chmod(0o600)
    finally:
        os.close(lock)


def _remove_stale(path: Path) -> None:
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise ParallaxError(f"{path} is a file, not a socket", "choose another path, or remove it")
    if _answers(path):
        raise ParallaxError(f"a process listens at {path} already", "choose another path, or end that process")
    path.unlink()


def _answers(path: Path) -> bool:
    with contextlib.closing(socket.socket(socket.AF_UNIX)) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(os.fspath(path))
        except TimeoutError:
            return True  # it listens, and is busy
        except OSError:
            return False
    return True

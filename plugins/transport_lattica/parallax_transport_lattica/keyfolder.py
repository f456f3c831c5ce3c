"""The folder with the key of a peer: its id stays the same when its node is started again."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from itertools import count
from pathlib import Path

from parallax_core.api import ParallaxError, keys_folder
from parallax_transport_zmq.keyfile import NAME, check_secret, name_machine

FOLDER = "lattica"


@contextmanager
def claim_key(node: str) -> Iterator[str]:
    """Lock and return the folder with the key of a node; a further process of that name gets the next one.

    Two peers of one key would be taken for one. Only the owner can enter the folder, since lattica lets everybody
    read the key.

    Raises:
        ParallaxError: if it cannot be made, or other users can enter it.
    """
    for number in count(1):
        folder = keys_folder() / FOLDER / (name_folder(node) if number == 1 else f"{name_folder(node)}.{number}")
        lock = _open_folder(folder)
        try:
            if _lock(lock):
                check_secret(folder)
                yield str(folder)
                return
        finally:
            os.close(lock)


def _open_folder(folder: Path) -> int:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return os.open(folder, os.O_RDONLY)
    except OSError as error:
        hint = "run the nodes as a user who can, or choose another PARALLAX_HOME"
        raise ParallaxError(f"no key of a peer can be kept in {folder}: {error.strerror}", hint) from error


def _lock(folder: int) -> bool:
    """Lock an open folder, unless another process has; return whether it is locked."""
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def name_folder(node: str) -> str:
    """Return the name of the folder for a node: that of its machine, if it can be one."""
    machine = name_machine(node)
    return machine if NAME.fullmatch(machine) else sha256(machine.encode()).hexdigest()[:16]

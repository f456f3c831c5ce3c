"""The folder with the key of a peer: its id stays the same when its node is started again."""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256

from parallax_core.api import ParallaxError, keys_folder
from parallax_transport_zmq.keyfile import NAME, check_secret, name_machine

FOLDER = "lattica"


@contextmanager
def claim_key(node: str) -> Iterator[str]:
    """Lock and return the folder with the key of a node; of a second process of that name, an empty one.

    Only the owner can enter it, since lattica lets everybody read the key.

    Raises:
        ParallaxError: if it cannot be made, or other users can enter it.
    """
    folder = keys_folder() / FOLDER / name_folder(node)
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = os.open(folder, os.O_RDONLY)
    except OSError as error:
        hint = "run the nodes as a user who can, or choose another PARALLAX_HOME"
        raise ParallaxError(f"no key of a peer can be kept in {folder}: {error.strerror}", hint) from error
    with contextlib.ExitStack() as stack:
        stack.callback(os.close, lock)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:  # two peers of one key would be taken for one
            yield stack.enter_context(tempfile.TemporaryDirectory(prefix="parallax-lattica-key-"))
            return
        check_secret(folder)
        yield str(folder)


def name_folder(node: str) -> str:
    """Return the name of the folder for a node: that of its machine, if it can be one."""
    machine = name_machine(node)
    return machine if NAME.fullmatch(machine) else sha256(machine.encode()).hexdigest()[:16]

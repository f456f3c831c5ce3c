"""Makes the folder of a process for its sockets, also where no disk has room."""

from __future__ import annotations

import os
from pathlib import Path
from tempfile import TemporaryDirectory

IN_MEMORY = "/dev/shm"  # noqa: S108 -- the folder that is made there is for its owner only
"""A folder of Linux that is in memory, and so has room where all disks are full."""


def make_private_folder() -> TemporaryDirectory[str]:
    """Return an empty folder for this user only, which is removed in the end.

    Raises:
        OSError: if none can be made anywhere.
    """
    try:
        return TemporaryDirectory(prefix="parallax-")
    except OSError:  # the usual folders are on a disk that is full, which Python finds out by writing there
        places = map(Path, (os.environ.get("XDG_RUNTIME_DIR") or IN_MEMORY, IN_MEMORY))
        if (parent := next((place for place in places if place.is_dir()), None)) is None:
            raise
        return TemporaryDirectory(prefix="parallax-", dir=parent)

"""Shares a machine's memory among workers of one home: without a given share, the first has all.

Each reads how much is free, and two would promise the same memory to their servers.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import socket
from collections.abc import Mapping
from pathlib import Path

from parallax_cluster.config.home import workers_folder

logger = logging.getLogger(__name__)

LEFT_OVER = 2**20
"""The bytes that a worker may use while another one has the memory of the machine: enough for nothing."""
DEVICES = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "ZE_AFFINITY_MASK")
"""The environment variables that choose devices: workers on different ones share no memory."""


class MemoryClaim:
    """The claim of this process to the memory of its machine, which ends with the process."""

    def __init__(self, given: int | None, path: Path | None = None) -> None:
        """Claim ``given`` bytes, or all memory if it is None, by a lock on the file at ``path``."""
        self._given = given
        self._path = path or claim_file(os.environ)
        self._lock: int | None = None
        self._is_told = False

    def find_limit(self) -> int | None:
        """Return the bytes that this process may use now; None: all that is free.

        A process that came second gets the memory once the first has ended.
        """
        if self._lock is None and not self._try():
            self._tell()
            return LEFT_OVER if self._given is None else self._given
        return self._given

    def close(self) -> None:
        """Give up the claim. Idempotent."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _try(self) -> bool:
        """Return whether this process has its claim, or claims are impossible here."""
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock = os.open(self._path, os.O_CREAT | os.O_RDWR, 0o600)
        except OSError as error:
            logger.debug("the memory of this machine is not claimed: %s", error)
            return True
        try:
            fcntl.flock(lock, (fcntl.LOCK_EX if self._given is None else fcntl.LOCK_SH) | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            return False
        except OSError:  # a file system without locks
            os.close(lock)
            return True
        if self._is_told:
            logger.info("the other worker has ended: this one has the memory of the machine")
        self._lock, self._is_told = lock, False
        return True

    def _tell(self) -> None:
        if self._is_told:
            return
        self._is_told = True
        hint = "give each its share: --memory GB; or end one: `parallax cluster leave`"
        if self._given is None:
            logger.warning("another worker has the memory of this machine, and this one waits for it; %s", hint)
        else:
            logger.warning("another worker counts on all the memory of this machine; %s", hint)


def claim_file(environment: Mapping[str, str]) -> Path:
    """Return the file that is locked by who has the memory of this machine and the devices that it sees.

    Containers that share a home have names of their own, and limits of memory.
    """
    seen = [f"{name}={environment[name]}" for name in DEVICES if name in environment]
    mark = hashlib.sha256(" ".join(seen).encode()).hexdigest()[:8] if seen else "all"
    return workers_folder() / f"{socket.gethostname()}-{mark}.memory"

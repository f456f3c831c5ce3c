"""Records this machine's workers in files, so that ``parallax cluster leave`` finds them.

A worker keeps a lock on its record for as long as it runs: a record without a lock is that of a process that has ended.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import msgspec
from filelock import FileLock, Timeout

from parallax_cluster.config.home import workers_folder
from parallax_core.api import NodeService

logger = logging.getLogger(__name__)

LOCK_S = 5.0
"""Seconds to wait for the lock of a new record, which a reader may hold for a moment."""


class WorkerRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A worker that an operator started on this machine."""

    node: str
    """The name of its node."""
    pid: Annotated[int, msgspec.Meta(ge=2)]
    host: str
    """The name of its machine; containers that share a home have different ones."""
    connect: str
    """The address of its server."""
    api: str = ""
    """The URL at which it forwards requests to the API of its server; empty: it does not."""

    @property
    def path(self) -> Path:
        """The file of the record."""
        return workers_folder() / f"{self.host}-{self.pid}.json"

    def wait_end(self, timeout_s: float = -1) -> bool:
        """Wait until its process has ended, forget it then, and return whether it has within ``timeout_s`` seconds.

        A negative time is unlimited.
        """
        try:
            with FileLock(self._lock_path, timeout=timeout_s):
                self.forget()
        except Timeout:
            return False
        return True

    def forget(self) -> None:
        """Delete the record."""
        self.path.unlink(missing_ok=True)
        self._lock_path.unlink(missing_ok=True)

    @property
    def _lock_path(self) -> Path:
        return self.path.with_suffix(".lock")

    @contextmanager
    def keep(self) -> Iterator[None]:
        """Hold the lock of the record, and keep the record in its file.

        Raises:
            OSError: if it cannot be written.
            Timeout: if another process holds the lock.
        """
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with FileLock(self._lock_path, timeout=LOCK_S):
            self.path.write_bytes(msgspec.json.encode(self))
            try:
                yield
            finally:
                self.forget()


@contextmanager
def recorded(node: str, connect: str, api: str = "") -> Iterator[None]:
    """Keep a record of this process as a worker; if it cannot be written, `parallax cluster leave` does not find it."""
    record = WorkerRecord(node=node, pid=os.getpid(), host=socket.gethostname(), connect=connect, api=api)
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(record.keep())
        except (OSError, Timeout) as error:
            logger.warning("`parallax cluster leave` will not find this worker: %s", error)
        yield


def find_workers() -> list[WorkerRecord]:
    """Return the workers that run on this machine, and delete the records of those that have ended."""
    found = []
    for path in sorted(workers_folder().glob("*.json")):
        try:
            record = msgspec.json.decode(path.read_bytes(), type=WorkerRecord)
        except (OSError, msgspec.DecodeError):  # it is being written, or was damaged
            continue
        if record.path == path and record.host == socket.gethostname() and not record.wait_end(0):
            found.append(record)
    return found


def find_api() -> str:
    """Return the URL at which a worker of this machine forwards to the API of its server; empty: none does."""
    return next((worker.api for worker in find_workers() if worker.api), "")


class RecordService(NodeService):
    """Keeps the record of this process for as long as its node runs."""

    def __init__(self, node: str, connect: str, api: str) -> None:
        self._stack = contextlib.ExitStack()
        self._stack.enter_context(recorded(node, connect, api))

    async def close(self) -> None:
        """Delete the record. Idempotent."""
        self._stack.close()

"""Caches measured speeds of devices in the user's cache folder, so that later starts skip them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import msgspec
from filelock import FileLock, Timeout

from parallax_core.api import DeviceSpeed, cache_folder
from parallax_core.api.node import replace_file

FOLDER = "speed"
ALONE_S = 60.0
"""Seconds to wait for another process of this machine that measures."""


class MeasuredSpeed(msgspec.Struct, forbid_unknown_fields=True):
    """A cached speed."""

    key: list[str]
    """All that it depends on, such as the machine, the backend and its version."""
    speed: DeviceSpeed
    disk_bandwidth: float
    """Bytes per second."""


def find_speed(key: list[str]) -> MeasuredSpeed | None:
    """Return the cached speed of a key, or None if missing or unreadable."""
    with suppress(OSError, msgspec.MsgspecError):
        found = msgspec.json.decode(_place(key).read_bytes(), type=MeasuredSpeed)
        if found.key == key:
            return found
    return None


def keep_speed(measured: MeasuredSpeed) -> None:
    """Write a speed to the cache; without a writable folder, later starts only measure again."""
    with suppress(OSError):
        replace_file(_place(measured.key), msgspec.json.encode(measured))


@contextmanager
def measuring_alone() -> Iterator[None]:
    """Wait until no other process of this user measures, and have others wait meanwhile."""
    with ExitStack() as stack:
        with suppress(OSError, Timeout):
            stack.enter_context(FileLock(cache_folder(FOLDER) / "measuring.lock", timeout=ALONE_S))
        yield


def _place(key: list[str]) -> Path:
    digest = hashlib.sha256(msgspec.json.encode(key)).hexdigest()
    return cache_folder(FOLDER) / f"{digest[:32]}.json"

"""Reads the cores and the memory this process may use, within its control groups."""

from __future__ import annotations

import contextlib
import gc
import hashlib
import math
import os
import socket
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

KIB = 1024


@dataclass(frozen=True, slots=True)
class Machine:
    """The resources that the kernel allows this process. The fields are the Linux files to read.

    Control groups come in two versions with different files; in both, the limits of all ancestors hold too.
    """

    membership: Path = Path("/proc/self/cgroup")
    groups: Path = Path("/sys/fs/cgroup")
    memory: Path = Path("/proc/meminfo")
    processors: Path = Path("/sys/devices/system/cpu")
    nvidia_driver: Path = Path("/proc/driver/nvidia/version")
    boot: Path = Path("/proc/sys/kernel/random/boot_id")

    def count_cores(self) -> int:
        """Return the number of cores this process can keep busy, at least 1; two threads of one core count once."""
        cores = len({self._read_siblings(number) for number in _list_processors()})
        return max(1, min([cores, *map(math.ceil, self._read_quotas())]))

    def free_memory(self) -> int | None:
        """Return the bytes of main memory available without swapping; None: unknown, as on macOS."""
        lines = _read_text(self.memory).splitlines()
        found = [int(line.split()[1]) * KIB for line in lines if line.startswith("MemAvailable:")]
        return min([*found, *self._read_memory_left()], default=None)

    def total_memory(self) -> int:
        """Return the bytes of main memory of the machine; 0: unknown."""
        try:
            return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        except (OSError, ValueError):
            return 0

    def identify(self, folder: Path) -> str:
        """Return digits that name this machine since its start, and a folder on it: those of a copy are others."""
        boot = _read_text(self.boot) or f"{uuid.getnode():x}"
        try:
            place = folder.stat()
        except OSError:
            return ""
        text = f"{boot} {socket.gethostname()} {place.st_dev} {place.st_ino}"
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def has_nvidia_driver(self) -> bool:
        """Return whether the driver of an NVIDIA GPU is loaded."""
        return self.nvidia_driver.exists()

    def _read_siblings(self, number: int) -> str:
        return _read_text(self.processors / f"cpu{number}/topology/thread_siblings_list") or str(number)

    def _read_quotas(self) -> Iterator[float]:
        for folder in self._list_folders("cpu"):
            quota, _, period = _read_text(folder / "cpu.max").partition(" ")
            if not quota:
                quota, period = _read_text(folder / "cpu.cfs_quota_us"), _read_text(folder / "cpu.cfs_period_us")
            if quota.isdecimal() and period.isdecimal():
                yield int(quota) / int(period)

    def _read_memory_left(self) -> Iterator[int]:
        for folder in self._list_folders("memory"):
            yield from _read_left(folder, "memory.max", "memory.current")
            yield from _read_left(folder, "memory.limit_in_bytes", "memory.usage_in_bytes")

    def _list_folders(self, controller: str) -> Iterator[Path]:
        """Yield the folders of this process's group and its ancestors."""
        for line in _read_text(self.membership).splitlines():
            _, controllers, group = line.split(":", 2)
            if controllers and controller not in controllers.split(","):
                continue
            top = self.groups / controllers if controllers else self.groups
            inside = Path(group.lstrip("/"))
            yield from (top / part for part in (inside, *inside.parents))


def _list_processors() -> list[int]:
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def _read_left(folder: Path, limit_name: str, usage_name: str) -> Iterator[int]:
    """Yield the limit minus the usage, if there is a limit; inactive file pages can be reclaimed and do not count."""
    limit, usage = _read_text(folder / limit_name), _read_text(folder / usage_name)
    if limit.isdecimal() and usage.isdecimal():
        lines = _read_text(folder / "memory.stat").splitlines()
        fields = dict(line.split(" ", 1) for line in lines if " " in line)
        idle = int(fields.get("total_inactive_file", fields.get("inactive_file", "0")))
        yield max(0, int(limit) - int(usage) + idle)


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError:
        return ""


def return_memory() -> None:
    """Return unused memory to the system, also that of reference cycles.

    It takes a good part of a second, during which no other thread runs.
    """
    import ctypes

    gc.unfreeze()  # what was made before modules were frozen may have gone with them
    gc.collect()
    gc.freeze()
    with contextlib.suppress(OSError, AttributeError):  # an allocator without this function, as on macOS
        ctypes.CDLL(None).malloc_trim(0)

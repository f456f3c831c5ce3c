"""What the kernel lets this process use: cores and memory, seen through control groups of either version."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

KIBI = 1024
PLENTY = 2**31
"""More cores than there are."""


@dataclass(frozen=True, slots=True)
class Machine:
    """Where the kernel of Linux says what there is."""

    membership: Path = Path("/proc/self/cgroup")
    groups: Path = Path("/sys/fs/cgroup")
    memory: Path = Path("/proc/meminfo")
    processors: Path = Path("/sys/devices/system/cpu")

    def count_cores(self) -> int:
        """Return how many cores this process can keep busy, at least 1: two threads of one core count once."""
        cores = {self._read_siblings(number) for number in _list_processors()}
        quota = min((quota for quota in self._read_quotas()), default=math.inf)
        return max(1, min(len(cores), math.ceil(quota) if math.isfinite(quota) else PLENTY))

    def find_room(self) -> int:
        """Return the bytes of main memory that can still be taken without swapping; 0 where nobody says."""
        lines = _read_text(self.memory).splitlines()
        rooms = [int(line.split()[1]) * KIBI for line in lines if line.startswith("MemAvailable:")]
        rooms += [int(room) for room in self._read_rooms() if math.isfinite(room)]
        return min(rooms, default=_read_total())

    def _read_siblings(self, number: int) -> str:
        path = self.processors / f"cpu{number}/topology/thread_siblings_list"
        return _read_text(path) or str(number)

    def _read_quotas(self) -> Iterator[float]:
        for folder in self._list_folders("cpu"):
            quota, _, period = _read_text(folder / "cpu.max").partition(" ")
            if not quota:
                quota, period = _read_text(folder / "cpu.cfs_quota_us"), _read_text(folder / "cpu.cfs_period_us")
            if quota.isdecimal() and period.isdecimal():
                yield int(quota) / int(period)

    def _read_rooms(self) -> Iterator[float]:
        for folder in self._list_folders("memory"):
            yield _read_room(folder, "memory.max", "memory.current")
            yield _read_room(folder, "memory.limit_in_bytes", "memory.usage_in_bytes")

    def _list_folders(self, controller: str) -> Iterator[Path]:
        """Yield the folders of this process's group and its ancestors: the limits of all of them hold."""
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


def _read_room(folder: Path, limit_name: str, usage_name: str) -> float:
    """Return limit minus usage; what of it is files not in active use counts as room, as the kernel gives it back."""
    limit, usage = _read_text(folder / limit_name), _read_text(folder / usage_name)
    if not (limit.isdecimal() and usage.isdecimal()):
        return math.inf
    lines = _read_text(folder / "memory.stat").splitlines()
    fields = dict(line.split(" ", 1) for line in lines if " " in line)
    idle = int(fields.get("total_inactive_file", fields.get("inactive_file", "0")))
    return max(0, int(limit) - int(usage) + idle)


def _read_total() -> int:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (OSError, ValueError):
        return 0


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError:
        return ""

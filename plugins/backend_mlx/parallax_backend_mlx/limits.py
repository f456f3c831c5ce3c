"""What the kernel lets this process use: cores and memory, seen through control groups.

Control groups come in two versions with different files; in both, a limit of any ancestor holds too.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class ControlGroups:
    """The control groups of this process.

    Args:
        membership: the file that says which groups this process is in.
        root: where the group file systems are mounted.
    """

    membership: Path = Path("/proc/self/cgroup")
    root: Path = Path("/sys/fs/cgroup")

    def count_cores(self) -> float:
        """Return the processor time granted, in cores; infinity without a limit."""
        return min([math.inf, *self._read_quotas()])

    def find_room(self) -> float:
        """Return the bytes of memory that may still be taken; infinity without a limit."""
        rooms = [math.inf]
        for folder in self._list_folders("memory"):
            rooms.append(_read_room(folder, "memory.max", "memory.current"))
            rooms.append(_read_room(folder, "memory.limit_in_bytes", "memory.usage_in_bytes"))
        return min(rooms)

    def _read_quotas(self) -> Iterator[float]:
        for folder in self._list_folders("cpu"):
            quota, _, period = _read_text(folder / "cpu.max").partition(" ")
            if not quota:
                quota, period = _read_text(folder / "cpu.cfs_quota_us"), _read_text(folder / "cpu.cfs_period_us")
            if quota.isdecimal() and period.isdecimal():
                yield int(quota) / int(period)

    def _list_folders(self, controller: str) -> Iterator[Path]:
        """Yield the folders of this process's group and its ancestors, of either version."""
        for line in _read_text(self.membership).splitlines():
            _, controllers, group = line.split(":", 2)
            if controllers and controller not in controllers.split(","):
                continue
            top = self.root / controllers if controllers else self.root
            inside = group.lstrip("/")
            yield from (top / part for part in (Path(inside), *Path(inside).parents))


def count_cores(groups: ControlGroups | None = None) -> int:
    """Return how many cores this process can keep busy: its affinity, within its control group; at least 1."""
    granted = (groups or ControlGroups()).count_cores()
    return max(1, min(len(os.sched_getaffinity(0)), math.ceil(granted) if math.isfinite(granted) else 2**31))


def find_host_room(groups: ControlGroups | None = None, meminfo: Path = Path("/proc/meminfo")) -> int:
    """Return the bytes of main memory this process can still take without swapping, on Linux."""
    rooms = [(groups or ControlGroups()).find_room()]
    lines = _read_text(meminfo).splitlines()
    rooms += [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")]
    room = min(rooms)
    return int(room) if math.isfinite(room) else 0


def _read_room(folder: Path, limit_name: str, usage_name: str) -> float:
    """Return limit minus usage; file pages that are not in active use count as room, as the kernel gives them back."""
    limit, usage = _read_text(folder / limit_name), _read_text(folder / usage_name)
    if not (limit.isdecimal() and usage.isdecimal()):
        return math.inf
    return max(0, int(limit) - int(usage) + _read_inactive(folder / "memory.stat"))


def _read_inactive(stat: Path) -> int:
    fields = dict(line.split(" ", 1) for line in _read_text(stat).splitlines() if " " in line)
    return int(fields.get("total_inactive_file", fields.get("inactive_file", "0")))


def _read_text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""

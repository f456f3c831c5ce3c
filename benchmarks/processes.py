"""Finds the processes that a command has started, reads what they take, and limits their processor time; Linux only."""

from __future__ import annotations

import contextlib
import os
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

PERIOD_US = 10_000
OLD, NEW = Path("/sys/fs/cgroup/cpu"), Path("/sys/fs/cgroup")
"""Control groups of version 1 and 2."""


def list_processes(pid: int) -> Iterator[int]:
    yield pid
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            children = path.read_text().split()
        except OSError:  # it has ended
            continue
        for child in children:
            yield from list_processes(int(child))


def is_running(pid: int) -> bool:
    try:
        return read_fields(pid)[0] != "Z"
    except OSError:
        return False


def read_cpu_s(pid: int) -> float:
    fields = read_fields(pid)
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def read_fields(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def read_resident(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS:"))


class Quota:
    """A control group with a quota of processor time."""

    def __init__(self, name: str, share: float) -> None:
        """Make the group, for ``share`` of one processor.

        Raises:
            OSError: if that is not allowed, or there are no such groups.
        """
        is_old = OLD.is_dir()
        self.folder = (OLD if is_old else NEW) / name
        self.folder.mkdir()
        quota_us = int(share * PERIOD_US)
        if is_old:
            (self.folder / "cpu.cfs_period_us").write_text(str(PERIOD_US))
            (self.folder / "cpu.cfs_quota_us").write_text(str(quota_us))
        else:
            (self.folder / "cpu.max").write_text(f"{quota_us} {PERIOD_US}")

    def wrap(self, command: Sequence[str]) -> list[str]:
        return ["sh", "-c", f"echo $$ > {self.folder}/cgroup.procs && exec {shlex.join(command)}"]

    def remove(self) -> None:
        with contextlib.suppress(OSError):  # a process may need another moment
            self.folder.rmdir()


def measure_memory(group: int) -> int:
    """Return the memory of the processes of a group in bytes; what several share counts once."""
    found = 0
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, ValueError):
            if int(read_fields(int(folder.name))[2]) == group:
                lines = (folder / "smaps_rollup").read_text().splitlines()
                found += next(1024 * int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return found

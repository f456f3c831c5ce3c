"""Finds the processes that a command has started, and reads their CPU time from Linux's ``/proc``."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path


def list_processes(pid: int) -> Iterator[int]:
    """Yield ``pid`` and all processes below it."""
    yield pid
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            children = path.read_text().split()
        except OSError:  # it has ended
            continue
        for child in children:
            yield from list_processes(int(child))


def is_running(pid: int) -> bool:
    """Return whether a process is there and not a zombie."""
    try:
        return read_fields(pid)[0] != "Z"
    except OSError:
        return False


def read_cpu_s(pid: int) -> float:
    """Return the CPU seconds that a process has used so far."""
    fields = read_fields(pid)
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def read_fields(pid: int) -> list[str]:
    """Return the fields of a process's ``stat`` after its name."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()

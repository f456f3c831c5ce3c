"""How much memory of this machine is free."""

from __future__ import annotations

from pathlib import Path

ROOT = Path("/")
KIB = 1024


def read_memory(root: Path = ROOT) -> int:
    """Return the bytes that can still be taken, within what a control group of this process allows; 0: not known.

    Known on Linux only: ``MemAvailable`` of proc(5), and ``memory.max`` of version 2 of control groups.
    """
    free = _read_available(root / "proc/meminfo")
    group = root / "sys/fs/cgroup"
    most, used = (_read_number(group / name) for name in ("memory.max", "memory.current"))
    if most is None or used is None:
        return free
    return min(free, max(0, most - used))


def _read_available(path: Path) -> int:
    try:
        lines = path.read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    return next((KIB * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")), 0)


def _read_number(path: Path) -> int | None:
    """Return what a file says; None where there is no such file, or it says that there is no limit."""
    try:
        return int(path.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None

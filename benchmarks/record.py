"""What every benchmark writes beside its figures: commit, command, machine, versions."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

CPUINFO = Path("/proc/cpuinfo")

FEATURES = ("avx", "avx2", "fma", "avx512", "amx", "asimd", "bf16", "i8mm", "sve")
"""How the names of those instructions begin on which the speed of arithmetic depends, on x86 and on ARM."""


def describe_run(command: Sequence[str], packages: Iterable[str] = ()) -> dict[str, Any]:
    """Return what a figure needs beside it to be worth anything.

    Args:
        command: what was run; a model folder by its name alone, since where it lies is the business of one machine.
        packages: distributions whose versions matter.
    """
    commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False).stdout.strip()  # noqa: S607
    return {
        "commit": commit,
        "command": " ".join(["python", "-m", *command]),
        "machine": {
            "cpu": read_processor(CPUINFO),
            "features": read_features(CPUINFO),
            "cores": count_cores(),
            "load": round(os.getloadavg()[0], 1),
            "system": platform.platform(),
        },
        "versions": {"python": platform.python_version(), **{name: metadata.version(name) for name in packages}},
    }


def write_report(path: Path | None, report: Mapping[str, Any]) -> None:
    """Write a report as JSON, if it is wanted."""
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(report, indent=2) + "\n")


def read_report(path: Path | None) -> dict[str, Any]:
    """Return what an earlier run wrote, or nothing."""
    found: dict[str, Any] = json.loads(path.read_text()) if path is not None and path.exists() else {}
    return found


def read_processor(path: Path) -> str:
    """Return the name of the processor."""
    return _read_field(path, "model name") or platform.processor()


def read_features(path: Path) -> list[str]:
    """Return the processor's vector instructions, sorted."""
    flags = (_read_field(path, "flags") or _read_field(path, "Features")).split()
    return sorted(flag for flag in flags if flag.startswith(FEATURES))


def _read_field(path: Path, name: str) -> str:
    """Return the first value of a name in a file like ``/proc/cpuinfo``, or an empty text."""
    lines: Iterable[str] = path.read_text().splitlines() if path.exists() else ()
    fields = (line.partition(":") for line in lines)
    return next((value.strip() for key, _, value in fields if key.strip() == name), "")


def count_cores() -> int:
    """Return the cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1

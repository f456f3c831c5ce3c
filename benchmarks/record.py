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
            "cpu": read_processor(Path("/proc/cpuinfo")),
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
    lines: Iterable[str] = path.read_text().splitlines() if path.exists() else ()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def count_cores() -> int:
    """Return the cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1

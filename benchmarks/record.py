"""Reads and writes reports, and describes a run: commit, command, machine and versions."""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

CPUINFO = Path("/proc/cpuinfo")

FEATURES = ("avx", "avx2", "fma", "avx512", "amx", "asimd", "bf16", "i8mm", "sve")
"""Prefixes of the CPU features that determine the speed of arithmetic, on x86 and ARM."""


def describe_run(command: Sequence[str], packages: Iterable[str] = ()) -> dict[str, Any]:
    """Return the facts needed to interpret and reproduce the figures of a run.

    Args:
        command: the module and its arguments; a model folder by its name only, since its path is specific to a machine.
        packages: distributions whose versions are reported.
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
        "versions": {"python": platform.python_version(), **{name: _find_version(name) for name in packages}},
    }


def _find_version(package: str) -> str:
    """Return the version of a distribution, or say that it runs from its sources."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "from its sources"


PARALLAX = str(Path(sys.executable).with_name("parallax"))
"""The command line of this environment."""


@cache
def find_model(name: str = "smollm2-135m") -> Path:
    """Return the folder of a model, by default the real one, which is downloaded unless it is there."""
    found = subprocess.run([PARALLAX, "models", "pull", name], capture_output=True, text=True, check=True)
    return Path(found.stdout.strip().splitlines()[-1])


def download(requirement: str, folder: Path, *, is_source: bool) -> Path:
    """Download a distribution from PyPI, its sources or a wheel, into a folder, and return the file."""
    kind = "--no-binary" if is_source else "--only-binary"
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", kind, ":all:", "--dest", str(folder)]
    subprocess.run([*command, requirement], check=True)
    [found] = folder.iterdir()
    return found


def make_parser(text: str | None, *, takes_model: bool = False) -> argparse.ArgumentParser:
    """Return the parser of a benchmark, whose help is ``text``, with ``--out`` and perhaps ``--model``."""
    parser = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="where to write the report as JSON")
    if takes_model:
        parser.add_argument("--model", type=Path, help="a model folder; by default SmolLM2-135M")
    return parser


def write_report(path: Path | None, report: Mapping[str, Any]) -> None:
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(report, indent=2) + "\n")


def read_report(path: Path | None) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text()) if path is not None and path.exists() else {}
    return found


def read_processor(path: Path) -> str:
    return _read_field(path, "model name") or platform.processor()


def read_features(path: Path) -> list[str]:
    flags = (_read_field(path, "flags") or _read_field(path, "Features")).split()
    return sorted(flag for flag in flags if flag.startswith(FEATURES))


def _read_field(path: Path, name: str) -> str:
    """Return the first value of a name in a file like ``/proc/cpuinfo``, or an empty string."""
    lines: Iterable[str] = path.read_text().splitlines() if path.exists() else ()
    fields = (line.partition(":") for line in lines)
    return next((value.strip() for key, _, value in fields if key.strip() == name), "")


def count_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1

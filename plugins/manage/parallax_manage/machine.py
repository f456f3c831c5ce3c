"""Examines this machine for ``parallax doctor``."""

from __future__ import annotations

import os
import platform
import shutil
from pathlib import Path

from parallax_core.api import Finding, cache_folder, models_folder

SMALL_DISK_BYTES = 5 * 10**9


def examine_machine() -> list[Finding]:
    """Report on Python, the processors, the models folder and its free space, and the cache folder."""
    return [_examine_python(), _examine_disk(models_folder()), _examine_cache()]


def _examine_python() -> Finding:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    message = f"Python {platform.python_version()}, {platform.system()} {platform.machine()}, {cores} cores"
    return Finding(topic="machine", status="ok", message=message)


def _examine_disk(folder: Path) -> Finding:
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    free = shutil.disk_usage(existing).free
    message = f"{folder} ({free / 10**9:.1f} GB free)"
    if free < SMALL_DISK_BYTES:
        remedy = "remove models with `parallax models rm`, or set PARALLAX_HOME to a larger disk"
        return Finding(topic="models folder", status="warning", message=message, remedy=remedy)
    return Finding(topic="models folder", status="ok", message=message)


def _examine_cache() -> Finding:
    try:
        folder = cache_folder("doctor")
        folder.rmdir()
    except OSError as error:
        remedy = "make it writable, or set PARALLAX_HOME to a writable folder"
        return Finding(topic="cache folder", status="error", message=str(error), remedy=remedy)
    return Finding(topic="cache folder", status="ok", message=f"{folder.parent} is writable")

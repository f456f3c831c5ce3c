"""Finds out whether this machine can run PyTorch, without importing it."""

from __future__ import annotations

from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from parallax_core.api import Availability

DRIVER = Path("/proc/driver/nvidia/version")


def probe_machine(driver: Path = DRIVER) -> Availability:
    """Return the availability by the installed packages and the NVIDIA driver; loads nothing."""
    if find_spec("torch") is None:
        return Availability(ok=False, reason="torch is not installed: pip install torch")
    has_cuda = driver.exists() and "+cpu" not in metadata.version("torch")
    return Availability(ok=True, device="CUDA" if has_cuda else "cpu")

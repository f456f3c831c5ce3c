"""Finds out whether this machine can run PyTorch, without importing it."""

from __future__ import annotations

from importlib import metadata
from importlib.util import find_spec

from parallax_core.api import Availability, Machine

MACHINE = Machine()


def probe_machine(machine: Machine = MACHINE) -> Availability:
    """Return the availability by the installed packages and the NVIDIA driver; loads nothing."""
    if find_spec("torch") is None:
        return Availability(ok=False, reason="torch is not installed: pip install torch")
    has_cuda = machine.has_nvidia_driver() and "+cpu" not in metadata.version("torch")
    return Availability(ok=True, device="CUDA" if has_cuda else "cpu")

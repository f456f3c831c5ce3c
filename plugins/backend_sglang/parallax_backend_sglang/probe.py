"""Finds out whether this environment can run SGLang, without importing it."""

from __future__ import annotations

from importlib import metadata
from importlib.util import find_spec

from parallax_backend_sglang.versions import REMEDY, explain_unsupported, find_installed
from parallax_core.api import Availability, Machine


def probe_machine() -> Availability:
    """Return the availability by the installed packages and the NVIDIA driver; loads nothing."""
    if reason := explain_unsupported(find_installed()):
        return Availability(ok=False, reason=f"{reason}: {REMEDY}")
    return Availability(ok=True, device="CUDA" if has_cuda() else "cpu")


def has_cuda() -> bool:
    """Return whether there is an NVIDIA driver, and a PyTorch that uses it."""
    return Machine().has_nvidia_driver() and find_spec("torch") is not None and "+cpu" not in metadata.version("torch")

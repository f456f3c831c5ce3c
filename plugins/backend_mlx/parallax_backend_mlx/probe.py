"""Finds out whether this machine can run MLX, without importing it."""

from __future__ import annotations

import platform
import sys
from importlib import metadata
from importlib.util import find_spec

from parallax_core.api import Availability

DEVICES = {"mlx-metal": "Metal", "mlx-cuda-13": "CUDA", "mlx-cuda-12": "CUDA", "mlx-cpu": "cpu"}
"""The distributions with a compute library of MLX, best first, and the devices they run on."""
FASTER = (
    "the torch backend is several times as fast on a CPU; without the gigabytes of CUDA: "
    "pip install 'torch>=2.13,<2.14' --index-url https://download.pytorch.org/whl/cpu, "
    "then pip install parallax-backend-torch"
)


def probe_machine() -> Availability:
    """Return the availability by the installed packages and the kind of machine; loads nothing."""
    if sys.platform not in ("darwin", "linux"):
        return Availability(ok=False, reason=f"MLX runs on macOS and Linux, not on {sys.platform}")
    if sys.platform == "darwin" and platform.machine() != "arm64":
        return Availability(ok=False, reason="on a Mac, MLX needs Apple silicon and an arm64 Python")
    for module, distribution in (("mlx", "mlx"), ("mlx_lm", "mlx-lm")):
        if find_spec(module) is None:
            return Availability(ok=False, reason=f"{distribution} is not installed: pip install {distribution}")
    for distribution, device in DEVICES.items():
        if _is_installed(distribution):
            is_slow = device == "cpu" and find_spec("parallax_backend_torch") is None
            return Availability(ok=True, device=device, advice=FASTER if is_slow else "")
    return Availability(ok=False, reason="mlx is installed without its compute library: pip install 'mlx[cpu]'")


def _is_installed(distribution: str) -> bool:
    try:
        metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return False
    return True

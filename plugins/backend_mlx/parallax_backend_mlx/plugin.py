"""Registers the MLX backend with Parallax."""

from __future__ import annotations

import importlib
from collections.abc import Iterable

from parallax_core.api import BackendSpec, Finding, Ref, Settings, SettingsSpec, hookimpl

OPTIONS = Ref[type[object]]("parallax_backend_mlx.settings:MlxSettings")


@hookimpl
def parallax_register_backends() -> Iterable[BackendSpec]:
    """Offer the backend ``mlx``."""
    return [
        BackendSpec(
            name="mlx",
            summary="MLX: Metal on Apple silicon, and CPUs",
            probe=Ref("parallax_backend_mlx.probe:probe_machine"),
            factory=Ref("parallax_backend_mlx.backend:MlxBackend"),
            rank=50,
            remedy="reinstall it: pip install --force-reinstall parallax-backend-mlx",
            options=OPTIONS,
            size=Ref("parallax_backend_mlx.sizes:measure_size"),
            benchmark=Ref("parallax_backend_mlx.benchmark:MlxBenchmark"),
            leases=True,
        )
    ]


@hookimpl
def parallax_register_settings() -> Iterable[SettingsSpec]:
    """Declare the section ``[mlx]``."""
    return [SettingsSpec(name="mlx", summary="how MLX is used", schema=OPTIONS)]


@hookimpl
def parallax_configure(config: Settings) -> None:
    """Read the settings that are needed before MLX is imported."""
    from parallax_backend_mlx.settings import PROCESS, MlxSettings

    PROCESS.blas = config.section(MlxSettings).blas


@hookimpl
def parallax_diagnose() -> Iterable[Finding]:
    """Report versions, the device, and which BLAS is in use."""
    findings: Iterable[Finding] = importlib.import_module("parallax_backend_mlx.diagnose").list_findings()
    return findings

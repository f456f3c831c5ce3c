"""What this distribution offers to Parallax."""

from __future__ import annotations

import importlib
from collections.abc import Iterable

from parallax_core.api import BackendSpec, Finding, Ref, hookimpl


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
        )
    ]


@hookimpl
def parallax_diagnose() -> Iterable[Finding]:
    """Report versions, the device, and which BLAS is in use."""
    findings: Iterable[Finding] = importlib.import_module("parallax_backend_mlx.diagnose").list_findings()
    return findings

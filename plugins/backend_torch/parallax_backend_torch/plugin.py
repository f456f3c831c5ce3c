"""What this distribution offers to Parallax."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from parallax_core.api import BackendSpec, Finding, Ref, Settings, SettingsSpec, hookimpl


@hookimpl
def parallax_register_backends() -> Iterable[BackendSpec]:
    """Offer the backend ``torch``."""
    return [
        BackendSpec(
            name="torch",
            summary="PyTorch: CPUs with kernels of its own, and CUDA",
            probe=Ref("parallax_backend_torch.probe:probe_machine"),
            factory=Ref("parallax_backend_torch.backend:TorchBackend"),
            rank=40,
            remedy="reinstall it: pip install --force-reinstall parallax-backend-torch",
        )
    ]


@hookimpl
def parallax_select_backend(model_config: Mapping[str, Any], available: Sequence[str]) -> str | None:
    """Run what keeps the blocks of a GGUF file, which other backends do not read."""
    method = (model_config.get("quantization_config") or {}).get("quant_method")
    return "torch" if method == "gguf" and "torch" in available else None


@hookimpl
def parallax_register_settings() -> Iterable[SettingsSpec]:
    """Declare the section ``[torch]``."""
    schema = Ref[type[object]]("parallax_backend_torch.settings:TorchSettings")
    return [SettingsSpec(name="torch", summary="how PyTorch is used", schema=schema)]


@hookimpl
def parallax_configure(config: Settings) -> None:
    """Take that section."""
    from parallax_backend_torch.settings import TorchSettings, apply_settings

    apply_settings(config.section(TorchSettings))


@hookimpl
def parallax_diagnose() -> Iterable[Finding]:
    """Report versions, the device, threads, and whether the kernels are in use."""
    findings: Iterable[Finding] = importlib.import_module("parallax_backend_torch.diagnose").list_findings()
    return findings

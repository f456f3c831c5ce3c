"""Registers the PyTorch backend with Parallax."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from parallax_core.api import BackendSpec, Finding, ModelAdapter, ModelSpec, Ref, Settings, SettingsSpec, hookimpl

OPTIONS = Ref[type[object]]("parallax_backend_torch.settings:TorchSettings")


@hookimpl
def parallax_register_backends() -> Iterable[BackendSpec]:
    """Offer the backend ``torch``."""
    return [
        BackendSpec(
            name="torch",
            summary="PyTorch: CPUs with kernels of its own, and CUDA",
            probe=Ref("parallax_backend_torch.probe:probe_machine"),
            factory=Ref("parallax_backend_torch.backend:TorchBackend"),
            rank=40 if sys.platform == "darwin" else 60,  # on a Mac, MLX has the GPU
            remedy="reinstall it: pip install --force-reinstall parallax-backend-torch",
            options=OPTIONS,
            size=Ref("parallax_backend_torch.sizes:measure_size"),
            benchmark=Ref("parallax_backend_torch.benchmark:TorchBenchmark"),
            leases=True,
        )
    ]


@hookimpl
def parallax_register_models() -> Iterable[ModelSpec]:
    """Describe the models that no adapter knows, as transformers builds them."""
    summary = "any other causal model, as the code of transformers builds it"
    adapter = Ref[ModelAdapter]("parallax_backend_torch.estimate:ESTIMATED")
    return [ModelSpec(name="estimated", summary=summary, architectures=("*",), adapter=adapter)]


@hookimpl
def parallax_select_backend(
    model_config: Mapping[str, Any], available: Sequence[str], with_blocks: Sequence[str]
) -> str | None:
    """Choose this backend for models that only it reads; leave others to the backend that runs them best."""
    from parallax_backend_torch.architectures import choose_backend

    return choose_backend(model_config, available, with_blocks)


@hookimpl
def parallax_register_settings() -> Iterable[SettingsSpec]:
    """Declare the section ``[torch]``."""
    return [SettingsSpec(name="torch", summary="how PyTorch is used", schema=OPTIONS)]


@hookimpl
def parallax_diagnose(config: Settings) -> Iterable[Finding]:
    """Report versions, the device, threads, and whether the kernels are in use."""
    from parallax_backend_torch.settings import TorchSettings

    settings, module = config.section(TorchSettings), importlib.import_module("parallax_backend_torch.diagnose")
    findings: Iterable[Finding] = module.list_findings(settings)
    return findings

"""Registers the PyTorch backend with Parallax."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from parallax_backend_torch.spec import ESTIMATED, OPTIONS, describe_torch
from parallax_core.api import BackendSpec, Finding, ModelSpec, Settings, SettingsSpec, hookimpl


@hookimpl
def parallax_register_backends() -> Iterable[BackendSpec]:
    """Offer the backend ``torch``."""
    return [describe_torch()]


@hookimpl
def parallax_register_models() -> Iterable[ModelSpec]:
    """Describe the models that no adapter knows, as transformers builds them."""
    return [ESTIMATED]


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

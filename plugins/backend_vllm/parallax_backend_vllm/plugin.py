"""Registers the vLLM backend with Parallax."""

from __future__ import annotations

from collections.abc import Iterable

from parallax_core.api import Finding, Ref, Settings, SettingsSpec, hookimpl

OPTIONS = Ref[type[object]]("parallax_backend_vllm.settings:VllmSettings")


@hookimpl
def parallax_register_settings() -> Iterable[SettingsSpec]:
    """Declare the section ``[vllm]``."""
    return [SettingsSpec(name="vllm", summary="how vLLM is used", schema=OPTIONS)]


@hookimpl
def parallax_diagnose(config: Settings) -> Iterable[Finding]:
    """Report the installed and the supported releases of vLLM."""
    del config
    from parallax_backend_vllm.diagnose import list_findings

    return list_findings()

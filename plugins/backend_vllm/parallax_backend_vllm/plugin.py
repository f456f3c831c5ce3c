"""Registers the vLLM backend with Parallax."""

from __future__ import annotations

from collections.abc import Iterable

from parallax_core.api import BackendSpec, Ref, SettingsSpec, hookimpl

OPTIONS = Ref[type[object]]("parallax_backend_vllm.settings:VllmSettings")


@hookimpl
def parallax_register_backends() -> Iterable[BackendSpec]:
    """Offer the backend ``vllm``."""
    return [
        BackendSpec(
            name="vllm",
            summary="vLLM: whole models with its own scheduler, or any range of layers; on CUDA and on CPUs",
            probe=Ref("parallax_backend_vllm.probe:probe_machine"),
            factory=Ref("parallax_backend_vllm.backend:VllmBackend"),
            remedy="make the environment of vLLM anew: parallax engines install vllm",
            options=OPTIONS,
            engine=Ref("parallax_backend_vllm.spec:ENGINE"),
            check=Ref("parallax_backend_vllm.families:check_family"),
            opens=("engine", "stage"),
        )
    ]


@hookimpl
def parallax_register_settings() -> Iterable[SettingsSpec]:
    """Declare the section ``[vllm]``."""
    return [SettingsSpec(name="vllm", summary="how vLLM is used", schema=OPTIONS)]

"""Registers the SGLang backend with Parallax."""

from __future__ import annotations

from collections.abc import Iterable

from parallax_core.api import BackendSpec, Ref, SettingsSpec, hookimpl

OPTIONS = Ref[type[object]]("parallax_backend_sglang.settings:SglangSettings")


@hookimpl
def parallax_register_backends() -> Iterable[BackendSpec]:
    """Offer the backend ``sglang``."""
    return [
        BackendSpec(
            name="sglang",
            summary="SGLang: whole models with its own scheduler, or any range of layers; on CUDA and on CPUs",
            probe=Ref("parallax_backend_sglang.probe:probe_machine"),
            factory=Ref("parallax_backend_sglang.backend:SglangBackend"),
            remedy="make the environment of SGLang anew: parallax engines install sglang",
            options=OPTIONS,
            engine=Ref("parallax_backend_sglang.spec:ENGINE"),
            check=Ref("parallax_backend_sglang.families:check_family"),
            opens=("engine", "stage"),
        )
    ]


@hookimpl
def parallax_register_settings() -> Iterable[SettingsSpec]:
    """Declare the section ``[sglang]``."""
    return [SettingsSpec(name="sglang", summary="how SGLang is used", schema=OPTIONS)]

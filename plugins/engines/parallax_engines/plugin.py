"""Offers replicas of engines that schedule themselves, their node service, and environments."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from parallax_core.api import BackendPython, BackendSpec, Finding, NodeServiceSpec, Ref, ReplicaSpec, hookimpl

PACKAGE = "parallax_engines"


@hookimpl
def parallax_register_replicas() -> list[ReplicaSpec]:
    """Offer the kind ``engine``, which `BackendSpec.opens` names."""
    return [
        ReplicaSpec(
            name="engine",
            summary="an engine that schedules itself, such as vLLM, in a process of its own",
            make=Ref(f"{PACKAGE}.remote:RemoteEngine"),
        )
    ]


@hookimpl
def parallax_register_node_services() -> list[NodeServiceSpec]:
    """Offer what opens engines on nodes."""
    return [
        NodeServiceSpec(
            name="engine",
            summary="opens engines that schedule themselves",
            messages=Ref(f"{PACKAGE}.messages:ALL"),
            node=Ref(f"{PACKAGE}.node_service:EngineService"),
        )
    ]


@hookimpl
def parallax_find_python(backend: BackendSpec) -> BackendPython | None:
    """Name the interpreter of the environment that ``parallax engines install`` made."""
    from parallax_engines.environment import find_backend_python

    return find_backend_python(backend)


@hookimpl
def parallax_diagnose(backends: Sequence[BackendSpec]) -> Iterable[Finding]:
    """Report on the releases of engines, and on their environments."""
    from parallax_engines.environment import examine_engines

    return examine_engines(backends)

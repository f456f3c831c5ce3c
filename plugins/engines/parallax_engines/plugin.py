"""Offers replicas of engines that schedule themselves, and the service by which nodes run them."""

from __future__ import annotations

from parallax_core.api import NodeServiceSpec, Ref, ReplicaSpec, hookimpl

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

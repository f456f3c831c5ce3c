"""Offers the service."""

from __future__ import annotations

from collections.abc import Iterable

from parallax_core.api import NodeServiceSpec, Ref, hookimpl


@hookimpl
def parallax_register_node_services() -> Iterable[NodeServiceSpec]:
    """Offer the comparison of clocks."""
    return [
        NodeServiceSpec(
            name="clock",
            summary="warns of nodes whose clocks are off",
            messages=Ref("parallax_service_clock.messages:ALL"),
            node=Ref("parallax_service_clock.clock:make_sender"),
            head=Ref("parallax_service_clock.clock:make_watcher"),
        )
    ]

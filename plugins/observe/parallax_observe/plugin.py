"""Offers the metrics, traces, requests and logs of a server."""

from __future__ import annotations

from collections.abc import Iterable

from parallax_core.api import DialectSpec, Event, NodeServiceSpec, Ref, hookimpl
from parallax_observe.request_record import RECORD


@hookimpl
def parallax_register_dialects() -> Iterable[DialectSpec]:
    """Offer the routes of metrics, requests and logs, with what measures."""
    return [
        DialectSpec(
            name="metrics",
            summary="metrics for Prometheus, traces, recent requests and the log",
            open=Ref("parallax_observe.dialect:open_dialect"),
        )
    ]


@hookimpl
def parallax_register_node_services() -> Iterable[NodeServiceSpec]:
    """Offer what brings the logs of nodes to their head."""
    return [
        NodeServiceSpec(
            name="log",
            summary="tells the head what a node logs",
            messages=Ref("parallax_observe.log_messages:ALL"),
            node=Ref("parallax_observe.log_service:make_sender"),
            head=Ref("parallax_observe.log_service:make_taker"),
        )
    ]


@hookimpl
def parallax_observe(event: Event) -> None:
    """Record requests."""
    RECORD.note(event)

"""Offers the metrics and traces of a server."""

from __future__ import annotations

from collections.abc import Iterable

from parallax_core.api import DialectSpec, Ref, hookimpl


@hookimpl
def parallax_register_dialects() -> Iterable[DialectSpec]:
    """Offer the route of the metrics, with what measures."""
    return [
        DialectSpec(
            name="metrics",
            summary="metrics for Prometheus, and traces",
            open=Ref("parallax_observe.dialect:open_dialect"),
        )
    ]

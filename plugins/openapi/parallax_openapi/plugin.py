"""Offers the description of the server."""

from __future__ import annotations

from collections.abc import Iterable

from parallax_core.api import DialectSpec, Ref, hookimpl


@hookimpl
def parallax_register_dialects() -> Iterable[DialectSpec]:
    """Offer the route of the description."""
    return [
        DialectSpec(
            name="openapi",
            summary="the description of the API, /openapi.json",
            open=Ref("parallax_openapi.route:open_dialect"),
        )
    ]

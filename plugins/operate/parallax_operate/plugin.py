"""Offers routes for the settings, the API keys and the stored models of a server."""

from __future__ import annotations

from collections.abc import Iterable

from parallax_core.api import DialectSpec, Ref, Settings, hookimpl

given: list[Settings] = []
"""The configuration of this process, once it is known: hooks are functions of a module."""


@hookimpl
def parallax_configure(config: Settings) -> None:
    """Keep the configuration, to show it."""
    given[:] = [config]


@hookimpl
def parallax_register_dialects() -> Iterable[DialectSpec]:
    """Offer the routes of administrators."""
    return [
        DialectSpec(
            name="operate",
            summary="the settings of the server, its API keys, and the models on its machine",
            open=Ref("parallax_operate.dialect:open_dialect"),
        )
    ]

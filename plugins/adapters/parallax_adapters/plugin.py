"""Offers the LoRA adapters of a server."""

from __future__ import annotations

from collections.abc import Iterable

from parallax_core.api import DialectSpec, NodeServiceSpec, Ref, Settings, SettingsSpec, hookimpl

SETTINGS = Ref[type[object]]("parallax_adapters.settings:AdapterSettings")


@hookimpl
def parallax_register_settings() -> Iterable[SettingsSpec]:
    """Declare the section ``[adapters]``."""
    return [SettingsSpec(name="adapters", summary="how many LoRA adapters are loaded, and which", schema=SETTINGS)]


@hookimpl
def parallax_configure(config: Settings) -> None:
    """Read the limits."""
    from parallax_adapters.settings import CHOSEN, AdapterSettings

    CHOSEN.settings = config.section(AdapterSettings)


@hookimpl
def parallax_register_dialects() -> Iterable[DialectSpec]:
    """Offer the routes, which load and unload adapters."""
    return [
        DialectSpec(
            name="adapters",
            summary="LoRA adapters, served as models of their names",
            open=Ref("parallax_adapters.dialect:open_dialect"),
        )
    ]


@hookimpl
def parallax_register_node_services() -> Iterable[NodeServiceSpec]:
    """Offer what brings adapters to the machines of stages."""
    return [
        NodeServiceSpec(
            name="adapters",
            summary="brings LoRA adapters to the nodes whose stages need them",
            messages=Ref("parallax_adapters.messages:ALL"),
            node=Ref("parallax_adapters.copies:make_copies"),
            head=Ref("parallax_adapters.sharing:make_sharing"),
        )
    ]

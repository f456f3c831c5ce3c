"""The section ``[plugins]``: the plugins to load, and the preferred one for a name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal

from msgspec import Meta

from parallax_core.contracts.policy import PolicyKind

OfferKind = Literal[
    "backend",
    "model",
    "source",
    "transport",
    "parser",
    "dialect",
    "deployment",
    PolicyKind,
    "settings",
    "node_service",
    "replica",
    "command",
]
"""The kinds of named things that plugins offer."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PluginSettings:
    """The user's choices about plugins."""

    disabled: Annotated[
        tuple[str, ...],
        Meta(description="Plugins not to load, by name or distribution; PARALLAX_PLUGINS_DISABLED adds to them."),
    ] = ()
    prefer: Annotated[
        Mapping[OfferKind, Mapping[str, str]],
        Meta(description="The distribution to use if several offer a name, as KIND.NAME = DISTRIBUTION."),
    ] = field(default_factory=dict)

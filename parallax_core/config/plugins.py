"""The section ``[plugins]``: which are loaded, and which wins."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal

from msgspec import Meta

from parallax_core.contracts.policy import PolicyKind

OfferKind = Literal["backend", "model", "source", "transport", "parser", PolicyKind, "settings", "command"]
"""What plugins offer by name."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PluginSettings:
    """What a user decides about plugins."""

    disabled: Annotated[
        tuple[str, ...],
        Meta(description="Plugins not to load, by name or distribution; PARALLAX_PLUGINS_DISABLED adds to them."),
    ] = ()
    prefer: Annotated[
        Mapping[OfferKind, Mapping[str, str]],
        Meta(description="Which distribution wins where several offer a name, as KIND.NAME = DISTRIBUTION."),
    ] = field(default_factory=dict)

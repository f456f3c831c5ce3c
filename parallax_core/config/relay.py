"""The options of machines that may relay for others; part of several sections."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta


@dataclass(frozen=True, kw_only=True, slots=True)
class RelaySettings:
    """Whether this machine forwards between nodes that cannot reach each other, and how much."""

    relay: Annotated[
        bool,
        Meta(description="Forward, encrypted end to end, between nodes of the cluster that cannot reach each other."),
    ] = False
    relay_rate: Annotated[
        float,
        Meta(
            description="Forward at most so many megabytes per second in all; 0: any number.",
            ge=0,
            extra={"metavar": "MB"},
        ),
    ] = 0.0
    relay_quota: Annotated[
        float,
        Meta(
            description="Forward at most so many gigabytes a day between two machines; 0: any number.",
            ge=0,
            extra={"metavar": "GB"},
        ),
    ] = 0.0

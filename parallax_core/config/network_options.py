"""The settings that several sections have about the network of a machine, and about the log."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from msgspec import Meta

from parallax_core.config.marks import NETWORK

STUN_PORT = 29754
"""The first of the two ports, over UDP and over TCP, at which machines are told the address they are seen from."""

PeerTimeout = Annotated[
    float | None,
    Meta(
        description="Seconds of silence after which a node is lost; by default the transport's (2.5).",
        ge=0.2,
        le=600,
        extra={"metavar": "S"},
    ),
]
Offline = Annotated[bool, Meta(description="No downloads, no discovery: contact only the given addresses.")]
StunPort = Annotated[
    int,
    Meta(
        description="Tell joining machines the address they are seen from, at port N and the next; 0: off.",
        ge=0,
        le=65534,
        extra={"metavar": "N"},
    ),
]

LogFormat = Annotated[
    Literal["text", "json"] | None,
    Meta(
        description="The form of log lines: text, or json, an object a line; by default PARALLAX_LOG_FORMAT, or text."
    ),
]
RelayRate = Annotated[
    float,
    Meta(
        description="Relay bandwidth limit in megabytes per second, in all; 0: unlimited.",
        ge=0,
        extra={"metavar": "MB"},
    ),
]
RelayQuota = Annotated[
    float,
    Meta(
        description="Relay limit in gigabytes per day between two machines; 0: unlimited.",
        ge=0,
        extra={"metavar": "GB"},
    ),
]


@dataclass(frozen=True, kw_only=True, slots=True)
class RelayLimitSettings:
    """How much a relay forwards."""

    relay_rate: RelayRate = 0.0
    relay_quota: RelayQuota = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class RelaySettings(RelayLimitSettings):
    """Whether a machine forwards between nodes that cannot reach each other, besides its other work."""

    relay: Annotated[
        bool,
        Meta(description="Forward, encrypted end to end, between nodes of the cluster that cannot reach each other."),
        NETWORK,
    ] = False

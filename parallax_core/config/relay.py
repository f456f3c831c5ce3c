"""The options of machines that may relay for others; part of several sections."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta

from parallax_core.config.network_options import STUN_PORT, Offline, PeerTimeout, StunPort


@dataclass(frozen=True, kw_only=True, slots=True)
class RelayLimitSettings:
    """How much a relay forwards."""

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


@dataclass(frozen=True, kw_only=True, slots=True)
class RelaySettings(RelayLimitSettings):
    """Whether a machine forwards between nodes that cannot reach each other, besides its other work."""

    relay: Annotated[
        bool,
        Meta(description="Forward, encrypted end to end, between nodes of the cluster that cannot reach each other."),
    ] = False


@dataclass(frozen=True, kw_only=True, slots=True)
class RelayCommandSettings(RelayLimitSettings):
    """The settings of a machine that only relays."""

    where: Annotated[
        str,
        Meta(
            description="A join code, or the address of a server that was joined by one before.",
            extra={"is_argument": True, "metavar": "CODE|ADDRESS"},
        ),
    ] = ""
    listen: Annotated[
        str | None,
        Meta(
            description="The address at which nodes reach this relay; by default a free port of this machine.",
            extra={"metavar": "ADDRESS"},
        ),
    ] = None
    rendezvous: Annotated[
        str | None,
        Meta(
            description="Also be a rendezvous (a bootstrap node) at this address; see `parallax rendezvous --help`.",
            extra={"metavar": "ADDRESS"},
        ),
    ] = None
    peer_timeout: PeerTimeout = None
    discovery: Annotated[
        bool,
        Meta(
            description="Look for the server on the local network if its address is not known or has changed, and be "
            "found there as a rendezvous."
        ),
    ] = True
    offline: Offline = False
    stun_port: StunPort = STUN_PORT
    verbose: Annotated[bool, Meta(description="Log more, with tracebacks.", extra={"short": "-v"})] = False

"""The section ``[relay]``, which defines the options of ``parallax cluster relay``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta

from parallax_core.api.deployment import STUN_PORT, LogFormat, Offline, PeerTimeout, RelayLimitSettings, StunPort


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
            description="Also be a rendezvous (a bootstrap node) at this address, as `parallax cluster rendezvous` is.",
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
    log_format: LogFormat = None

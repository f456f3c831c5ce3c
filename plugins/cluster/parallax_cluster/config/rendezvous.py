"""The section ``[rendezvous]``, which defines the options of ``parallax cluster rendezvous``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta

from parallax_core.api.deployment import LogFormat


@dataclass(frozen=True, kw_only=True, slots=True)
class RendezvousSettings:
    """The settings of a rendezvous."""

    listen: Annotated[
        str,
        Meta(description="The address where nodes and servers meet; always encrypted.", extra={"metavar": "ADDRESS"}),
    ] = "tcp://0.0.0.0:9100"
    transport: Annotated[str, Meta(description="The transport between nodes.", extra={"metavar": "NAME"})] = "zmq"
    code_hours: Annotated[
        float,
        Meta(
            description="Hours for new machines to come with the printed code; 0: print none.",
            ge=0,
            le=24 * 3650,
            extra={"metavar": "HOURS"},
        ),
    ] = 720.0
    discovery: Annotated[bool, Meta(description="Be found on the local network by machines with its code.")] = True
    offline: Annotated[
        bool, Meta(description="Neither look for nodes nor answer broadcasts; only serve connecting nodes.")
    ] = False
    verbose: Annotated[bool, Meta(description="Log more, with tracebacks.", extra={"short": "-v"})] = False
    log_format: LogFormat = None

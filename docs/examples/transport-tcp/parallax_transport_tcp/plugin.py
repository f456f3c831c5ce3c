"""Registers a transport with Parallax."""

from __future__ import annotations

from collections.abc import Iterable

from parallax_core.api import Ref, TransportSpec, hookimpl


@hookimpl
def parallax_register_transports() -> Iterable[TransportSpec]:
    """Offer the transport."""
    return [
        TransportSpec(
            name="tcp",
            summary="TCP between processes of one machine",
            factory=Ref("parallax_transport_tcp.transport:TcpTransport"),
        )
    ]

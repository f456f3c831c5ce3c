"""Registers the transport over lattica with Parallax."""

from __future__ import annotations

from collections.abc import Iterable

from parallax_core.api import Ref, TransportSpec, hookimpl


@hookimpl
def parallax_register_transports() -> Iterable[TransportSpec]:
    """Offer links over a peer-to-peer network."""
    return [
        TransportSpec(
            name="lattica",
            summary="ZeroMQ with its encryption, over a peer-to-peer network (libp2p)",
            factory=Ref("parallax_transport_lattica.transport:LatticaTransport"),
            remedy="pip install parallax-transport-zmq",
            place_local=Ref("parallax_transport_lattica.address:place_local"),
            place_near=Ref("parallax_transport_lattica.address:place_near"),
            joining=Ref("parallax_transport_lattica.joining:LatticaJoining"),
            timeout_s=8.0,
        )
    ]

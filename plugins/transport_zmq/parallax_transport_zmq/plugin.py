"""Registers the ZeroMQ transport with Parallax."""

from __future__ import annotations

from collections.abc import Iterable

from parallax_core.api import Ref, TransportSpec, hookimpl


@hookimpl
def parallax_register_transports() -> Iterable[TransportSpec]:
    """Offer links over TCP and over sockets of this machine."""
    return [
        TransportSpec(
            name="zmq",
            summary="ZeroMQ over TCP (encrypted off loopback) and local sockets",
            factory=Ref("parallax_transport_zmq.transport:ZmqTransport"),
            remedy="pip install pyzmq",
            place_local=Ref("parallax_transport_zmq.address:place_local"),
            place_near=Ref("parallax_transport_zmq.address:place_near"),
            joining=Ref("parallax_transport_zmq.joining:ZmqJoining"),
            discovery=Ref("parallax_transport_zmq.discovery:UdpDiscovery"),
        )
    ]

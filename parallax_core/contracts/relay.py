"""Links over a relay: an optional part of a transport.

A relay forwards the bytes of a connection between two nodes that cannot reach each other. Core carries the bytes; the
transport makes its usual connection at both ends, with its own encryption and keys, so that a relay can neither read
nor change what passes.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from parallax_core.contracts.transport import Link


@runtime_checkable
class Relayable(Protocol):
    """An optional protocol of a `Transport` whose connections can be carried as streams of bytes."""

    async def open_port(self) -> int:
        """Accept links at a TCP port of 127.0.0.1, too, with the same keys as elsewhere, and return the port.

        A second call returns the same port.

        Raises:
            ParallaxError: if this node does not listen, or its connections are neither encrypted nor authenticated.
        """

    async def connect_port(self, port: int, node: str) -> Link:
        """Connect to ``node`` by a TCP port of 127.0.0.1 that leads to a port of its `open_port`.

        Raises:
            PeerLost: if the node does not answer in time, or does not prove its key.
        """

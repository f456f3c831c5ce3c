"""A transport that reaches nobody over a port of loopback."""

from __future__ import annotations

from parallax_core.api import Link, PeerLost
from parallax_core.builtin.inprocess import InProcessTransport


class LonelyTransport(InProcessTransport):
    """Reaches nodes in this process, and nobody over a relay."""

    async def open_port(self) -> int:
        return 1

    async def connect_port(self, port: int, node: str) -> Link:
        raise PeerLost(f"node {node!r} does not answer at {port}")

"""The kit of transports."""

from __future__ import annotations

from collections.abc import Callable

from parallax_core.api import Ref, Transport, TransportPlan
from parallax_core.testing.process import ProcessTransportConformance


class TestLattica(ProcessTransportConformance):
    timeout_s = 2.0
    grace_s = 30.0
    """As for ZeroMQ, whose heartbeats these are; a link needs a process besides."""
    large_bytes = 16 * 2**20

    beats_beside_loop = True
    factory: Ref[Callable[[TransportPlan], Transport]] = Ref("parallax_transport_lattica.transport:LatticaTransport")

    def make_address(self, node: str) -> str:
        return "lattica://127.0.0.1:0"

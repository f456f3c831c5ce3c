"""The kit of transports."""

from __future__ import annotations

from collections.abc import Callable

from parallax_core.api import Ref, Transport, TransportPlan
from parallax_core.testing.process import ProcessTransportConformance


class TestLattica(ProcessTransportConformance):
    timeout_s = 1.5
    """Longer than it takes to start the process of a link on a busy machine; most of the time, a test waits for it."""

    grace_s = 30.0
    """As for ZeroMQ, whose heartbeats these are."""
    large_bytes = 16 * 2**20

    beats_beside_loop = True
    beats_beside_interpreter = True
    factory: Ref[Callable[[TransportPlan], Transport]] = Ref("parallax_transport_lattica.transport:LatticaTransport")

    def make_address(self, node: str) -> str:
        return "lattica://127.0.0.1:0"

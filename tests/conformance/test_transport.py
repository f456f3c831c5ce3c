from __future__ import annotations

from itertools import count

from parallax_core.api import Transport, TransportPlan
from parallax_core.builtin.inprocess import InProcessTransport
from parallax_core.testing.transport import TransportConformance
from parallax_transport_tcp.transport import TcpTransport

NUMBERS = count()


class TcpKit(TransportConformance):
    def make_transport(self, plan: TransportPlan) -> Transport:
        return TcpTransport(plan)

    def make_address(self, node: str) -> str:
        return "tcp://127.0.0.1:0"


class TestInProcess(TransportConformance):
    """The one core brings passes; that of the example is run where it is installed."""

    timeout_s = 0.3
    """Both ends live in one loop, so what is slow is slow for both."""

    def make_transport(self, plan: TransportPlan) -> Transport:
        return InProcessTransport(plan)

    def make_address(self, node: str) -> str:
        return f"inprocess://{node}-{next(NUMBERS)}"

"""The transport held to the whole contract by Parallax's own kit, in one process and in several."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from parallax_core.api import ParallaxError, Ref, Transport, TransportPlan
from parallax_core.testing.process import ProcessTransportConformance
from parallax_transport_tcp.plugin import parallax_register_transports

[SPEC] = parallax_register_transports()


class TestTcp(ProcessTransportConformance):
    factory: Ref[Callable[[TransportPlan], Transport]] = SPEC.factory

    def make_address(self, node: str) -> str:
        return "tcp://127.0.0.1:0"


@pytest.mark.parametrize("address", ["tcp://0.0.0.0:0", "tcp://example.org:80", "tcp://127.0.0.1", "udp://127.0.0.1:1"])
def test_address_off_loopback_is_refused(address: str) -> None:
    with pytest.raises(ParallaxError, match="loopback"):
        asyncio.run(SPEC.factory.load()(TransportPlan(node="a", listen=address)).start())

from __future__ import annotations

import pytest

from parallax_core.api import TransportPlan
from parallax_core.base.errors import ParallaxError, PeerLost, UnusableAddress
from parallax_core.builtin.inprocess import InProcessLink, InProcessTransport
from parallax_core.node.worker.head_link import connect_head


class Transport(InProcessTransport):
    """A transport that cannot connect."""

    def __init__(self, error: ParallaxError) -> None:
        super().__init__(TransportPlan(node="desk/1"))
        self.error = error

    async def connect(self, address: str, node: str) -> InProcessLink:
        raise self.error


async def test_address_that_is_none_of_the_transport_is_told_apart_from_a_lost_head() -> None:
    with pytest.raises(UnusableAddress, match="no address") as caught:
        await connect_head(Transport(ParallaxError("no address", "write another")), "tcp://a:1", "head")
    assert caught.value.hint == "write another"
    with pytest.raises(PeerLost, match="nobody"):
        await connect_head(Transport(PeerLost("nobody")), "tcp://a:1", "head")

from __future__ import annotations

import asyncio

import pytest

from parallax_cluster.node.relay import client as module
from parallax_cluster.node.relay.client import RelayClient
from parallax_cluster.node.relay.limits import RelayLimits
from parallax_cluster.node.relay.server import RelayServer
from parallax_cluster.wire.relay import RelayPlace
from parallax_core.api import TransportPlan
from parallax_core.builtin.inprocess import InProcessTransport
from parallax_core.node.worker.incoming import IncomingLinks
from plugins.cluster.tests.node.relay.lonely import LonelyTransport
from tests.unit.node.cluster import until


async def test_relay_that_does_not_want_a_node_is_asked_less_and_less(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "AGAIN_S", (0.0, 0.0, 0.0, 3600.0))
    relay = InProcessTransport(TransportPlan(node="relay", listen="inprocess://"))
    await relay.start()
    asked = list[str]()

    def is_member(node: str) -> bool:
        asked.append(node)
        return False

    incoming = IncomingLinks(relay, "relay", RelayServer(RelayLimits(), is_member).purposes)
    client = RelayClient(LonelyTransport(TransportPlan(node="a")), "a", RelayPlace("relay", relay.address))
    async with incoming.accepting():
        running = asyncio.create_task(client.run())
        await until(lambda: len(asked) >= 3)
        await asyncio.sleep(0.3)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    await relay.stop()
    assert asked == ["a"] * 3

from __future__ import annotations

import asyncio

import pytest

from parallax_cluster.node.relay import client as module
from parallax_cluster.node.relay.client import RelayClient
from parallax_cluster.node.relay.limits import RelayLimits
from parallax_cluster.node.relay.server import RelayServer
from parallax_cluster.wire.relay import TOKEN_BYTES, Reach, RelayPlace, Ring
from parallax_core.api import PeerLost, TransportPlan
from parallax_core.builtin.inprocess import InProcessTransport
from parallax_core.node.channel import Channel
from parallax_core.node.handshake import welcome
from parallax_core.node.worker.incoming import IncomingLinks
from plugins.cluster.tests.node.relay.lonely import LonelyTransport
from tests.unit.node.cluster import soon, until


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


async def test_node_that_is_not_there_is_reached_by_no_stream() -> None:
    relay = InProcessTransport(TransportPlan(node="relay", listen="inprocess://"))
    await relay.start()
    incoming = IncomingLinks(relay, "relay", RelayServer(RelayLimits(), lambda _: True).purposes)
    client = RelayClient(LonelyTransport(TransportPlan(node="a")), "a", RelayPlace("relay", relay.address))
    async with incoming.accepting():
        with pytest.raises(PeerLost, match="the relay 'relay' says: "):
            await soon(client.reach("nobody"))
    await relay.stop()


async def test_answer_of_a_relay_that_means_something_else_makes_no_stream() -> None:
    relay = InProcessTransport(TransportPlan(node="relay", listen="inprocess://"))
    await relay.start()
    client = RelayClient(LonelyTransport(TransportPlan(node="a")), "a", RelayPlace("relay", relay.address))
    reaching = asyncio.create_task(client.reach("b"))
    channel = Channel(await soon(relay.accept()))
    channel.learn([Ring, Reach])
    await soon(welcome(channel, "relay"))
    assert await soon(channel.receive()) == Reach("b")
    await channel.send(Ring("b", bytes(TOKEN_BYTES)))
    with pytest.raises(PeerLost, match="the relay 'relay' sent a Ring"):
        await soon(reaching)
    with pytest.raises(PeerLost):
        await soon(channel.receive())
    await relay.stop()

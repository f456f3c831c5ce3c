"""Nodes that relay for others of their cluster, and what their head tells of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from parallax_cluster.node.relay.directory import MOST_OF_ONE, RelayDirectory
from parallax_cluster.node.relay.host import RelayHost
from parallax_cluster.node.relay.limits import RelayLimits
from parallax_cluster.node.relay.offer import RelayOffer
from parallax_cluster.node.relay.server import RelayServer
from parallax_cluster.wire.profile import Peer
from parallax_cluster.wire.relay import OfferRelay, RelayPlace, Relays, RelayUser, RelayUsers
from parallax_core.api import PeerLost, TransportPlan
from parallax_core.builtin.inprocess import InProcessTransport
from parallax_core.node.channel import Channel
from parallax_core.node.handshake import greet
from parallax_core.node.membership.registry import NodeRegistry
from parallax_core.testing.node import BACKEND
from parallax_core.wire.membership import Join
from parallax_core.wire.messages import Message, Purpose
from tests.unit.node.cluster import call, open_registry, soon, until
from tests.unit.wire.damage import KINDS

PURPOSES: tuple[Purpose, ...] = ("relay", "stream")
KEYLESS = Join("inprocess://nowhere", (BACKEND,), "here", 0)


async def join(registry: NodeRegistry, name: str) -> Channel:
    channel = await call(registry, name)
    await channel.send(KEYLESS)
    await until(lambda: registry.has(name))
    return channel


async def offer(registry: NodeRegistry, name: str, message: Message) -> Channel:
    """Make a link of purpose ``offer`` as the node called ``name``, and say something."""
    channel = Channel(await InProcessTransport(TransportPlan(node=name)).connect(registry.address, "head"))
    channel.learn(KINDS.values())
    await soon(greet(channel, name, "offer"))
    await channel.send(message)
    return channel


async def receive_all(channel: Channel) -> None:
    while True:
        await channel.receive()


async def test_nodes_are_told_of_relays_as_they_come_and_go() -> None:
    async with open_registry() as registry:
        early = await join(registry, "early")
        relay = await offer(registry, "desk", OfferRelay("inprocess://desk"))
        place = RelayPlace("desk", "inprocess://desk")
        assert await soon(early.receive()) == Relays((place,))
        assert await soon(relay.receive()) == RelayUsers((RelayUser("early"),))
        late = await join(registry, "late")
        assert await soon(late.receive()) == Relays((place,))
        assert await soon(relay.receive()) == RelayUsers((RelayUser("early"), RelayUser("late")))
        await relay.leave()
        assert await soon(early.receive()) == await soon(late.receive()) == Relays()


async def test_head_that_relays_is_the_first_relay() -> None:
    async with open_registry() as registry:
        registry.services.find(RelayDirectory).server = RelayServer(RelayLimits(), registry.has)
        node = await join(registry, "node")
        assert await soon(node.receive()) == Relays((RelayPlace("head", ""),))
        await offer(registry, "desk", OfferRelay("inprocess://desk"))
        assert await soon(node.receive()) == Relays((RelayPlace("head", ""), RelayPlace("desk", "inprocess://desk")))


@pytest.mark.parametrize("message", [OfferRelay(""), Relays(), KEYLESS])
async def test_offer_without_an_address_is_none(message: Message) -> None:
    async with open_registry() as registry:
        channel = await offer(registry, "desk", message)
        with pytest.raises(PeerLost):
            await soon(channel.receive())
        assert registry.services.find(RelayDirectory).relays == ()


async def test_machine_offers_a_bounded_number_of_relays() -> None:
    async with open_registry() as registry:
        for number in range(MOST_OF_ONE):
            await offer(registry, f"desk/{number}", OfferRelay("inprocess://desk"))
        await until(lambda: len(registry.services.find(RelayDirectory).relays) == MOST_OF_ONE)
        surplus = await offer(registry, "desk/x", OfferRelay("inprocess://desk"))
        with pytest.raises(PeerLost):
            await soon(surplus.receive())
        await offer(registry, "other", OfferRelay("inprocess://other"))
        await until(lambda: len(registry.services.find(RelayDirectory).relays) == MOST_OF_ONE + 1)


async def test_nobody_is_told_anything_once_the_head_has_stopped() -> None:
    async with open_registry() as registry:
        await offer(registry, "desk", OfferRelay("inprocess://desk"))
        await until(lambda: len(registry.services.find(RelayDirectory).relays) == 1)
        before = asyncio.all_tasks()
        await registry.stop()
        assert asyncio.all_tasks() <= before


async def test_newer_offer_of_a_node_replaces_the_older() -> None:
    async with open_registry() as registry:
        old = await offer(registry, "desk", OfferRelay("inprocess://old"))
        await until(lambda: len(registry.services.find(RelayDirectory).relays) == 1)
        await offer(registry, "desk", OfferRelay("inprocess://new"))
        await until(lambda: registry.services.find(RelayDirectory).relays == (RelayPlace("desk", "inprocess://new"),))
        with pytest.raises(PeerLost):
            await soon(receive_all(old))


async def test_nodes_that_leave_together_are_told_of_at_once() -> None:
    async with open_registry() as registry:
        relay = await offer(registry, "desk", OfferRelay("inprocess://desk"))
        assert await soon(relay.receive()) == RelayUsers()
        for _ in range(20):
            registry.services.find(RelayDirectory).note_end()
        assert await soon(relay.receive()) == RelayUsers()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await relay.receive()


@asynccontextmanager
async def hosting(registry: NodeRegistry) -> AsyncIterator[RelayOffer]:
    """Run a node called ``desk`` that only relays."""
    transport, made = InProcessTransport(TransportPlan(node="desk", listen="inprocess://")), RelayOffer(RelayLimits())
    await transport.start()
    serving = asyncio.create_task(RelayHost(transport, "desk", made).serve(Peer("head", registry.address)))
    try:
        yield made
    finally:
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)
        await transport.stop()


async def test_relay_alone_serves_those_that_have_joined_and_no_longer_those_that_are_gone() -> None:
    async with AsyncExitStack() as stack:
        registry = await stack.enter_async_context(open_registry())
        node = await join(registry, "node")
        made = await stack.enter_async_context(hosting(registry))
        await until(lambda: made.server.is_member("node"))
        assert not made.server.is_member("stranger")
        await join(registry, "other")
        await until(lambda: made.server.is_member("other"))
        await node.leave()
        await until(lambda: not made.server.is_member("node"))
        assert made.server.is_member("other")


async def test_stranger_cannot_use_or_be_called_over_a_relay_alone() -> None:
    async with AsyncExitStack() as stack:
        registry = await stack.enter_async_context(open_registry())
        made = await stack.enter_async_context(hosting(registry))
        await until(lambda: len(registry.services.find(RelayDirectory).relays) == 1)
        transport, address = (
            InProcessTransport(TransportPlan(node="stranger")),
            registry.services.find(RelayDirectory).relays[0].address,
        )
        for purpose in PURPOSES:
            channel = Channel(await transport.connect(address, "desk"))
            channel.learn(KINDS.values())
            await soon(greet(channel, "stranger", purpose))
            with pytest.raises(PeerLost):
                await soon(channel.receive())
        assert not made.server.reachable


async def test_relay_offers_itself_again_to_a_head_that_was_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("parallax_cluster.node.relay.host.AGAIN_S", (0.01,))
    async with AsyncExitStack() as stack:
        registry = await stack.enter_async_context(open_registry())
        await stack.enter_async_context(hosting(registry))
        await until(lambda: len(registry.services.find(RelayDirectory).relays) == 1)
        address = registry.address
        await registry.stop()
        again = await stack.enter_async_context(open_registry(address))
        await until(lambda: len(again.services.find(RelayDirectory).relays) == 1)

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from itertools import count

import pytest

from parallax_cluster.node.relay import server as module
from parallax_cluster.node.relay.directory import RelayDirectory
from parallax_cluster.node.relay.limits import RelayLimits
from parallax_cluster.node.relay.server import RelayServer
from parallax_cluster.wire.relay import NotReached, PickUp, Reach, Reached, Ring
from parallax_core.api import PeerLost, TransportPlan
from parallax_core.builtin.inprocess import InProcessTransport
from parallax_core.node.channel import Channel
from parallax_core.node.handshake import greet
from parallax_core.node.membership.registry import NodeRegistry
from parallax_core.wire.api_data import ApiData
from parallax_core.wire.messages import Message, Purpose
from tests.unit.node.cluster import Node, joined, open_registry, soon, until
from tests.unit.wire.damage import KINDS

PURPOSES: tuple[Purpose, ...] = ("relay", "stream")


class Relay:
    """A head that relays, of which the nodes ``a``, ``b`` and ``c`` are members."""

    def __init__(self, registry: NodeRegistry, limits: RelayLimits) -> None:
        self.registry = registry
        self.server = registry.services.find(RelayDirectory).server = RelayServer(limits, registry.has)
        self.channels: list[Channel] = []

    async def link(self, name: str, purpose: Purpose) -> Channel:
        """Make another link to the relay as the node ``name``."""
        transport = InProcessTransport(TransportPlan(node=name))
        channel = Channel(await transport.connect(self.registry.address, "head"))
        channel.learn(KINDS.values())
        self.channels.append(channel)
        await soon(greet(channel, name, purpose))
        return channel

    async def attach(self, name: str) -> Channel:
        """Make the link over which the node ``name`` hears of calls."""
        control = await self.link(name, "relay")
        await until(lambda: name in self.server.reachable)
        return control

    async def reach(self, caller: str, node: str) -> Channel:
        """Ask for a stream from one node to another."""
        channel = await self.link(caller, "stream")
        await channel.send(Reach(node))
        return channel

    async def answer(self, name: str, token: bytes) -> Channel:
        channel = await self.link(name, "stream")
        await channel.send(PickUp(token))
        return channel

    async def splice(self, control: Channel, caller: str = "a", node: str = "b") -> tuple[Channel, Channel]:
        """Make a stream, and return its ends."""
        near = await self.reach(caller, node)
        ring = await soon(control.receive())
        assert isinstance(ring, Ring)
        assert ring.node == caller
        far = await self.answer(node, ring.token)
        assert await soon(near.receive()) == await soon(far.receive()) == Reached()
        return near, far


@asynccontextmanager
async def relaying(limits: RelayLimits | None = None) -> AsyncIterator[Relay]:
    async with open_registry() as registry, joined(registry, Node("a"), Node("b"), Node("c")):
        relay = Relay(registry, limits or RelayLimits())
        yield relay
        for channel in relay.channels:
            await channel.leave()


async def send_many(channel: Channel, number: int) -> None:
    for _ in range(number):
        await channel.send(ApiData(bytes(1000)))


async def until_lost(channel: Channel) -> int:
    """Receive until the link ends, and return the number of messages."""
    for number in count():
        try:
            await channel.receive()
        except PeerLost:
            return number
    raise AssertionError("the loop ends with a loss")


async def refused(channel: Channel) -> str:
    """Return why a stream was refused."""
    answer = await soon(channel.receive())
    assert isinstance(answer, NotReached)
    with pytest.raises(PeerLost):
        await soon(channel.receive())
    return answer.reason


async def test_bytes_pass_both_ways_in_order_and_the_end_of_one_ends_the_other() -> None:
    async with relaying() as relay:
        near, far = await relay.splice(await relay.attach("b"))
        for number in range(100):
            await near.send(ApiData(b"to %d" % number))
            await far.send(ApiData(b"fro %d" % number))
            assert await soon(far.receive()) == ApiData(b"to %d" % number)
            assert await soon(near.receive()) == ApiData(b"fro %d" % number)
        await near.send(ApiData(b"last"))
        await near.leave()
        assert await soon(far.receive()) == ApiData(b"last")
        with pytest.raises(PeerLost):
            await soon(far.receive())
        await until(lambda: relay.server.num_streams == 0)


async def test_receiver_that_does_not_read_stops_its_sender_only() -> None:
    async with relaying() as relay:
        control = await relay.attach("b")
        near, _ = await relay.splice(control)
        sending = asyncio.create_task(send_many(near, 100))
        await asyncio.sleep(0.3)
        assert not sending.done(), "what is on its way is bounded by the credit of the links"
        sending.cancel()
        other, far = await relay.splice(control)
        await other.send(ApiData(b"x"))
        assert await soon(far.receive()) == ApiData(b"x")


async def test_token_is_used_once_by_the_node_that_was_told_it() -> None:
    async with relaying() as relay:
        control = await relay.attach("b")
        near = await relay.reach("a", "b")
        ring = await soon(control.receive())
        assert isinstance(ring, Ring)
        assert "no such call" in await refused(await relay.answer("c", ring.token))
        assert "no such call" in await refused(await relay.answer("b", bytes(16)))
        far = await relay.answer("b", ring.token)
        assert await soon(near.receive()) == await soon(far.receive()) == Reached()
        assert "no such call" in await refused(await relay.answer("b", ring.token))


async def test_token_expires(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ANSWER_S", 0.05)
    async with relaying() as relay:
        control = await relay.attach("b")
        near = await relay.reach("a", "b")
        ring = await soon(control.receive())
        assert isinstance(ring, Ring)
        assert await refused(near) == "node 'b' does not answer"
        assert "no such call" in await refused(await relay.answer("b", ring.token))
        assert relay.server.num_streams == 0


async def test_answer_that_comes_just_as_a_call_is_given_up_is_let_go() -> None:
    async with relaying() as relay:
        control = await relay.attach("b")
        calling = asyncio.create_task(relay.server._call(await relay.link("a", "stream"), "b"))
        ring = await soon(control.receive())
        assert isinstance(ring, Ring)
        answer = await relay.link("b", "stream")
        relay.server._calls[ring.token].answered.set_result(answer)
        calling.cancel()
        await asyncio.gather(calling, return_exceptions=True)
        assert answer.ended.is_set()


async def test_node_without_a_link_is_not_reached() -> None:
    async with relaying() as relay:
        assert await refused(await relay.reach("a", "b")) == "node 'b' has no link to this relay"
        control = await relay.attach("b")
        await control.leave()
        await until(lambda: not relay.server.reachable)
        assert await refused(await relay.reach("a", "b")) == "node 'b' has no link to this relay"


async def test_newer_link_of_a_node_replaces_the_older() -> None:
    async with relaying() as relay:
        old = await relay.attach("b")
        new = await relay.link("b", "relay")
        with pytest.raises(PeerLost):
            await soon(old.receive())
        await relay.splice(new)


async def test_only_members_use_it() -> None:
    async with relaying() as relay:
        for purpose in PURPOSES:
            stranger = await relay.link("stranger", purpose)
            with pytest.raises(PeerLost):
                await soon(stranger.receive())
        assert not relay.server.reachable


@pytest.mark.parametrize("purpose", PURPOSES)
@pytest.mark.parametrize("message", [ApiData(b"x"), Reached(), Ring("a", bytes(16))])
async def test_unexpected_message_ends_the_link(purpose: Purpose, message: Message) -> None:
    async with relaying() as relay:
        channel = await relay.link("a", purpose)
        await channel.send(message)
        await soon(until_lost(channel))


async def test_link_of_another_purpose_is_no_stream() -> None:
    async with relaying() as relay:
        channel = await relay.link("a", "direct")
        with suppress(PeerLost):  # it may be refused already
            await channel.send(Reach("b"))
        with pytest.raises(PeerLost):
            await soon(channel.receive())


async def test_message_in_a_stream_that_is_no_data_ends_it() -> None:
    async with relaying() as relay:
        near, far = await relay.splice(await relay.attach("b"))
        await near.send(Reach("c"))
        for channel in (near, far):
            with pytest.raises(PeerLost):
                await soon(channel.receive())


async def test_silent_stream_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "IDLE_S", 0.05)
    async with relaying() as relay:
        for channel in await relay.splice(await relay.attach("b")):
            with pytest.raises(PeerLost):
                await soon(channel.receive())


async def test_node_that_says_nothing_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FIRST_S", 0.05)
    async with relaying() as relay:
        channel = await relay.link("a", "stream")
        with pytest.raises(PeerLost):
            await soon(channel.receive())


async def test_links_of_a_machine_that_say_nothing_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_OF_ONE", 2)
    monkeypatch.setattr(module, "FIRST_S", 3600)
    async with relaying() as relay:
        control = await relay.attach("b")
        silent = [await relay.link("a", "stream") for _ in range(2)]
        surplus = await relay.link("a", "stream")
        with pytest.raises(PeerLost):
            await soon(surplus.receive())
        await silent[0].leave()
        async with asyncio.timeout(5):
            while True:
                with suppress(PeerLost):  # until it is noticed that one is gone
                    await relay.splice(control)
                    break


async def test_streams_of_a_machine_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_OF_ONE", 2)
    async with relaying() as relay:
        control = await relay.attach("b")
        near, _ = await relay.splice(control)
        await relay.splice(control)
        assert await refused(await relay.reach("a", "b")) == "it carries too many streams"
        await relay.splice(control, "c")
        await near.leave()
        await until(lambda: relay.server.num_streams == 2)
        await relay.splice(control)


async def test_used_up_quota_ends_a_stream_and_refuses_others_of_the_pair() -> None:
    async with relaying(RelayLimits(bytes_per_day=5000)) as relay:
        control = await relay.attach("b")
        near, far = await relay.splice(control)
        sending = asyncio.create_task(send_many(near, 100))
        assert await soon(until_lost(far)) == 5
        await asyncio.gather(sending, return_exceptions=True)
        assert "used up" in await refused(await relay.reach("a", "b"))
        await relay.splice(control, "c")


async def test_relay_is_asked_for_where_there_is_none() -> None:
    async with relaying() as relay:
        relay.registry.services.find(RelayDirectory).server = None
        channel = await relay.link("a", "stream")
        with pytest.raises(PeerLost):
            await soon(channel.receive())

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nacl.signing import SigningKey

from parallax_cluster.membership.announcement import Body, ClusterSecret, read_announcement
from parallax_cluster.node.membership import rendezvous as module
from parallax_cluster.node.membership.rendezvous import RendezvousServer
from parallax_cluster.wire.rendezvous import MOST_ANNOUNCEMENT_BYTES, Announced, Follow
from parallax_core.api import Frame, Link, PeerLost, TransportPlan
from parallax_core.builtin.inprocess import InProcessTransport
from parallax_core.contracts.node_service import LinkPurpose
from parallax_core.node.channel import Channel
from parallax_core.node.handshake import greet
from parallax_core.node.membership.registry import NodeRegistry
from parallax_core.wire.codec import encode
from parallax_core.wire.membership import Join
from tests.unit.node.cluster import open_registry, soon
from tests.unit.wire.damage import KINDS

SECRET, KEY = ClusterSecret(b"s" * 16), SigningKey(b"k" * 32)
TOPIC, OTHER_TOPIC = SECRET.derive_topic(b"one"), SECRET.derive_topic(b"other")


def announce(sequence: int, content: bytes = b"content", *, number: int = 1, topic: bytes = TOPIC) -> bytes:
    return SECRET.announce(KEY, Body(topic, number, sequence, int(time.time()) + 15, content))


@asynccontextmanager
async def meeting() -> AsyncIterator[NodeRegistry]:
    async with open_registry() as registry:
        registry.purposes["rendezvous"] = LinkPurpose(serve=RendezvousServer().serve, must_have_joined=False)
        yield registry


async def open_link(registry: NodeRegistry, node: str) -> Link:
    """Return the link of a client that has greeted."""
    link = await InProcessTransport(TransportPlan(node=node)).connect(registry.address, "head")
    await soon(greet(Channel(link), node, "rendezvous"))
    return link


async def enter(registry: NodeRegistry, node: str, *topics: bytes) -> Channel:
    channel = Channel(await open_link(registry, node))
    channel.learn(KINDS.values())
    if topics:
        await channel.send(Follow(topics))
    return channel


async def hear(channel: Channel) -> bytes:
    message = await soon(channel.receive())
    assert isinstance(message, Announced)
    return message.announcement


async def test_announcements_are_passed_on_to_those_who_follow_their_topic() -> None:
    async with meeting() as registry:
        early, other = await enter(registry, "early", TOPIC), await enter(registry, "other", OTHER_TOPIC)
        bringer = await enter(registry, "bringer")
        data = announce(1)
        await bringer.send(Announced(data))
        assert await hear(early) == data
        assert await hear(await enter(registry, "late", TOPIC)) == data, "also to who comes later"
        await bringer.send(Announced(elsewhere := announce(1, topic=OTHER_TOPIC)))
        assert await hear(other) == elsewhere, "and nothing before"


async def test_replayed_announcement_is_not_passed_on() -> None:
    async with meeting() as registry:
        follower, bringer = await enter(registry, "follower", TOPIC), await enter(registry, "bringer")
        old, new, last = announce(1), announce(2), announce(1, number=2)
        for data in (old, new, old, new, last):
            await bringer.send(Announced(data))
        heard = [await hear(follower), await hear(follower)]
        heard = [*heard, await hear(follower)] if heard[-1] != last else heard
        assert heard in ([old, new, last], [new, last])


async def test_reader_that_is_slow_is_sent_the_newest_only() -> None:
    follower = module.Subscriber(channel=None, topics=frozenset([TOPIC]))  # type: ignore[arg-type]
    for sequence in range(1000):
        follower.tell(read_announcement(announce(sequence)), time.time())
    assert len(follower.waiting) == 1


async def test_what_expires_does_not_wait_for_a_reader_that_never_reads() -> None:
    follower = module.Subscriber(channel=None, topics=frozenset([TOPIC]))  # type: ignore[arg-type]
    now = time.time()
    current = [announce(1, number=number) for number in range(100)]
    for number in range(2000):
        follower.tell(read_announcement(announce(1, number=1000 + number)), now - 1000)  # as of long before
    for data in current:
        follower.tell(read_announcement(data), now)
    assert len(follower.waiting) < 500
    assert {each.data for each in follower.waiting.values()} >= set(current)


@pytest.mark.parametrize(
    "sent", [Announced(b"garbage"), Announced(announce(1)[:-1]), Join("inprocess://x", (), "h", 0)]
)
async def test_who_sends_something_else_is_cut_off_and_others_are_not(sent: Announced | Join) -> None:
    async with meeting() as registry:
        follower, hostile = await enter(registry, "follower", TOPIC), await enter(registry, "hostile")
        await hostile.send(sent)
        with pytest.raises(PeerLost):
            await soon(hostile.receive())
        bringer = await enter(registry, "bringer")
        await bringer.send(Announced(data := announce(5)))
        assert await hear(follower) == data


async def test_one_machine_has_a_bounded_number_of_links() -> None:
    async with meeting() as registry:
        links = [await enter(registry, f"greedy/{n}", TOPIC) for n in range(module.MOST_LINKS_OF_ONE)]
        one_more = await enter(registry, "greedy/x", TOPIC)
        with pytest.raises(PeerLost):
            await soon(one_more.receive())
        other = await enter(registry, "other", TOPIC)
        await links[0].close()
        await other.send(Announced(data := announce(1)))
        assert await hear(other) == data


async def test_links_are_read_at_a_bounded_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "EACH_S", 0.05)
    async with meeting() as registry:
        follower, bringer = await enter(registry, "follower", TOPIC), await enter(registry, "bringer")
        begun, sent = time.monotonic(), [announce(1, number=number) for number in range(5)]
        for data in sent:
            await bringer.send(Announced(data))
        assert [await hear(follower) for _ in sent] == sent
        assert time.monotonic() - begun >= 4 * 0.05


async def test_links_of_one_machine_share_a_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "EACH_S", 0.05)
    async with meeting() as registry:
        follower = await enter(registry, "follower", TOPIC)
        bringers = [await enter(registry, f"machine/{number}") for number in range(5)]
        begun, sent = time.monotonic(), [announce(1, number=number) for number in range(5)]
        for bringer, data in zip(bringers, sent, strict=True):
            await bringer.send(Announced(data))
        assert sorted([await hear(follower) for _ in sent]) == sorted(sent)
        assert time.monotonic() - begun >= 4 * 0.05


async def test_topic_that_is_followed_several_times_is_sent_once() -> None:
    async with meeting() as registry:
        bringer = await enter(registry, "bringer")
        await bringer.send(Announced(first := announce(1)))
        assert await hear(await enter(registry, "other", TOPIC)) == first
        follower = await enter(registry, "follower", *[TOPIC] * 3)
        assert await hear(follower) == first
        await follower.send(Follow((TOPIC, OTHER_TOPIC)))
        await bringer.send(Announced(second := announce(1, topic=OTHER_TOPIC)))
        assert await hear(follower) == second


async def test_head_that_is_no_rendezvous_refuses() -> None:
    async with open_registry() as registry:
        channel = await enter(registry, "client")
        with pytest.raises(PeerLost):
            await soon(channel.receive())


@given(st.lists(st.binary(min_size=1, max_size=MOST_ANNOUNCEMENT_BYTES), min_size=1, max_size=5))
def test_garbage_costs_its_link_only(garbage: list[bytes]) -> None:
    async def run() -> None:
        async with meeting() as registry:
            follower = await enter(registry, "follower", TOPIC)
            for number, data in enumerate(garbage):
                hostile = await open_link(registry, f"hostile/{number}")
                await hostile.send(Frame(encode(Announced(b"x")).header[:1] + data))
            bringer = await enter(registry, "bringer")
            await bringer.send(Announced(last := announce(9)))
            assert await hear(follower) == last

    asyncio.run(run())


async def test_clients_that_are_gone_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_LINKS", 2)
    async with meeting() as registry:
        bringer = await enter(registry, "bringer")
        await bringer.send(Announced(announce(1)))
        for number in range(5):
            client = await enter(registry, f"client/{number}", TOPIC)
            await hear(client)
            with pytest.raises(PeerLost):  # there is one client too many
                await soon((await enter(registry, "other", TOPIC)).receive())
            await client.leave()
            await asyncio.sleep(0.05)

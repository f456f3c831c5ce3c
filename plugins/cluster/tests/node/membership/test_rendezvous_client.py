from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest
from nacl.signing import SigningKey

from parallax_cluster.membership.announcement import LIFETIME_S, ClusterSecret, read_announcement
from parallax_cluster.node.membership import rendezvous_client as module
from parallax_cluster.node.membership.rendezvous import RendezvousServer
from parallax_cluster.node.membership.rendezvous_client import Announcer, RendezvousClient, RendezvousPlace
from parallax_cluster.wire.rendezvous import Announced, Follow
from parallax_core.api import PeerLost, TransportPlan
from parallax_core.base.errors import ParallaxError
from parallax_core.base.ids import Epoch
from parallax_core.builtin.inprocess import InProcessTransport
from parallax_core.contracts.node_service import LinkPurpose
from parallax_core.node.channel import Channel
from parallax_core.node.membership.registry import NodeRegistry
from parallax_core.wire.membership import Leave
from tests.unit.node.cluster import open_registry, until

SECRET, STRANGE = ClusterSecret(b"s" * 16), ClusterSecret(b"t" * 16)
TOPIC = SECRET.derive_topic(b"offers")


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "AGAIN_S", (0.02,))


@dataclass
class Machine:
    """A client of a rendezvous that may move or be away."""

    name: str
    registry: NodeRegistry | None
    secret: ClusterSecret = SECRET
    num_heard: int = 0
    fault: ParallaxError = field(default_factory=lambda: PeerLost("away"))
    skew_s: float = 0.0

    def __post_init__(self) -> None:
        key = SigningKey(self.name.encode().ljust(32)[:32])
        announcer = Announcer(key, 1, lambda: time.time() + self.skew_s)
        self.client = RendezvousClient(self.secret, announcer, self.hear)

    def hear(self) -> None:
        self.num_heard += 1

    async def reach(self) -> RendezvousPlace:
        if self.registry is None:
            raise self.fault
        transport = InProcessTransport(TransportPlan(node=self.name))
        await transport.start()
        return RendezvousPlace(transport, self.registry.address, self.name)

    def list_contents(self) -> list[bytes]:
        return [each.body.content for each in self.client.list_current(TOPIC)]


@asynccontextmanager
async def running(*machines: Machine) -> AsyncIterator[None]:
    tasks = [asyncio.create_task(each.client.run(each.reach)) for each in machines]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@asynccontextmanager
async def meeting() -> AsyncIterator[NodeRegistry]:
    async with open_registry() as registry:
        registry.purposes["rendezvous"] = LinkPurpose(serve=RendezvousServer().serve, must_have_joined=False)
        yield registry


async def test_clients_hear_each_other_and_what_is_withdrawn() -> None:
    async with meeting() as registry:
        head, one, other = (Machine(name, registry) for name in ("head", "one", "other"))
        head.client.follow([TOPIC])
        one.client.announce(TOPIC, b"one")
        async with running(head, one, other):
            await until(lambda: head.list_contents() == [b"one"])
            other.client.announce(TOPIC, b"other")
            await until(lambda: sorted(head.list_contents()) == [b"one", b"other"])
            one.client.announce(TOPIC, b"changed")
            await until(lambda: sorted(head.list_contents()) == [b"changed", b"other"])
            one.client.announce(TOPIC, b"")
            await until(lambda: head.list_contents() == [b"other"])
            assert head.num_heard >= 4
            assert one.list_contents() == [], "it follows nothing"


async def test_announcement_of_a_stranger_is_not_believed() -> None:
    async with meeting() as registry:
        head, one, stranger = (
            Machine("head", registry),
            Machine("one", registry),
            Machine("stranger", registry, STRANGE),
        )
        head.client.follow([TOPIC])
        stranger.client.announce(TOPIC, b"stranger")
        async with running(head, stranger):
            await until(lambda: stranger.client.is_linked)
            await asyncio.sleep(0.1)
            one.client.announce(TOPIC, b"one")
            async with running(one):
                await until(lambda: head.list_contents() == [b"one"])


async def test_client_comes_back_to_a_rendezvous_that_was_away_and_says_all_again() -> None:
    head, one = Machine("head", None), Machine("one", None)
    head.client.follow([TOPIC])
    one.client.announce(TOPIC, b"one")
    async with running(head, one):
        for _ in range(2):
            async with meeting() as registry:
                head.registry = one.registry = registry
                await until(lambda: head.client.is_linked and one.client.is_linked)
                await until(lambda: head.list_contents() == [b"one"])
                head.registry = one.registry = None
            await until(lambda: not head.client.is_linked)
            assert head.list_contents() == [b"one"], "what was heard counts until it expires"


@pytest.mark.parametrize(("skew_s", "words"), [(-300, "about 300 s behind"), (300, "about 300 s ahead of")])
async def test_node_with_another_time_is_told_so_and_the_rendezvous_too(
    skew_s: float, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with meeting() as registry:
        node = Machine("node", registry, skew_s=skew_s)
        node.client.announce(TOPIC, b"node")
        async with running(node):
            await until(lambda: "the rendezvous passes on nothing of this node" in caplog.text)
            node.client.announce(TOPIC, b"again")
            await asyncio.sleep(0.1)
    told = [each.getMessage() for each in caplog.records if words in each.getMessage()]
    assert len(told) == 2, "each side says it once"


async def test_head_with_another_time_than_a_node_is_told_so(caplog: pytest.LogCaptureFixture) -> None:
    async with open_registry() as registry:
        registry.purposes["rendezvous"] = LinkPurpose(
            serve=RendezvousServer(lambda: time.time() - 100).serve, must_have_joined=False
        )
        head, node = Machine("head", registry), Machine("node", registry, skew_s=-100)
        head.client.follow([TOPIC])
        node.client.announce(TOPIC, b"first")
        async with running(head, node):
            await until(lambda: head.client.is_linked and node.client.is_linked)
            for number in range(3):
                await asyncio.sleep(0.1)
                node.client.announce(TOPIC, b"%d" % number)
            await until(lambda: "a node is not found: its clock is about 100 s behind" in caplog.text)
        assert head.list_contents() == []


@pytest.mark.parametrize("sent", [Leave(Epoch(1)), Announced(b"garbage")])
async def test_rendezvous_that_sends_something_else_is_left(sent: Leave | Announced) -> None:
    async def serve(channel: Channel) -> None:
        channel.learn([Follow])
        await channel.receive()
        await channel.send(sent)
        await asyncio.sleep(3600)

    async with open_registry() as registry:
        registry.purposes["rendezvous"] = LinkPurpose(serve=serve, must_have_joined=False)
        head = Machine("head", registry)
        head.client.follow([TOPIC])
        async with running(head):
            await until(lambda: head.client.is_linked)
            await until(lambda: not head.client.is_linked)
            assert (head.list_contents(), head.num_heard) == ([], 0)


def test_sequence_rises_also_if_the_clock_is_set_back() -> None:
    now = 1000.0
    announcer = Announcer(SigningKey(b"k" * 32), 7, lambda: now)
    first = read_announcement(announcer.announce(SECRET, TOPIC, b"x")).body
    now = 900.0
    second = read_announcement(announcer.announce(SECRET, TOPIC, b"x")).body
    assert second.sequence > first.sequence >= 1000_000
    assert (first.number, first.expires) == (7, 1000 + LIFETIME_S)

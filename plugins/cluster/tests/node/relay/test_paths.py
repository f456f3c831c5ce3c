from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from parallax_cluster.node.relay import paths as module
from parallax_cluster.node.relay.client import RelayClient
from parallax_cluster.node.relay.paths import RelayPaths
from parallax_cluster.wire.profile import Peer
from parallax_cluster.wire.relay import RelayPlace, Relays
from parallax_core.api import Link, PeerLost, TransportPlan
from parallax_core.builtin.inprocess import InProcessLink, InProcessTransport
from parallax_core.node.channel import Channel
from parallax_core.node.trusted_peers import TrustedPeers
from parallax_core.wire.api_data import ApiData
from plugins.cluster.tests.node.relay.lonely import LonelyTransport
from tests.unit.node.cluster import open_registry, soon, until


class Streams(RelayClient):
    """A relay that reaches every node, or none, or makes one stream."""

    def __init__(self, transport: InProcessTransport, place: RelayPlace, way: bool | Channel) -> None:
        super().__init__(transport, "near", place)
        self._way = way

    async def run(self) -> None:
        await asyncio.Event().wait()

    async def reach(self, node: str) -> Channel:
        if isinstance(self._way, Channel):
            return self._way
        if not self._way:
            raise PeerLost(f"the relay {self.name!r} says: no such node")
        near, _ = await link_nodes()
        return Channel(near)


class Ways(LonelyTransport):
    """Reaches a node directly once ``direct`` is set, and over a relay once ``relayed`` is."""

    def __init__(self) -> None:
        super().__init__(TransportPlan(node="near"))
        self.direct, self.relayed = asyncio.Event(), asyncio.Event()
        self.tried: list[str] = []
        self.ends: dict[str, InProcessLink] = {}
        """The far ends of the links that were made, by their way."""

    async def connect(self, address: str, node: str) -> InProcessLink:
        if address == "inprocess://refused":
            raise PeerLost(f"node {node!r} does not listen", "start it")
        return await self._make("direct", self.direct)

    async def connect_port(self, port: int, node: str) -> Link:
        return await self._make("relayed", self.relayed)

    async def _make(self, way: str, is_there: asyncio.Event) -> InProcessLink:
        self.tried.append(way)
        await is_there.wait()
        near, far = await link_nodes()
        self.ends[way] = far
        return near


async def link_nodes() -> tuple[InProcessLink, InProcessLink]:
    far = InProcessTransport(TransportPlan(node="far", listen="inprocess://"))
    await far.start()
    near = await InProcessTransport(TransportPlan(node="near")).connect(far.address, "far")
    return near, await far.accept()


@asynccontextmanager
async def relayed(transport: InProcessTransport, **relays: bool | Channel) -> AsyncIterator[RelayPaths]:
    """Yield the paths of a node with these relays, of which some work, or make this stream."""

    def make_client(transport: InProcessTransport, node: str, place: RelayPlace, *_: str) -> Streams:
        return Streams(transport, place, relays[place.node])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "RelayClient", make_client)
        paths = RelayPaths(transport, "near")
        async with paths.joined(Peer("head", "inprocess://head")):
            paths.meet(Relays(tuple(RelayPlace(name, "inprocess://") for name in relays)), TrustedPeers(transport))
            yield paths


@asynccontextmanager
async def streaming() -> AsyncIterator[tuple[Channel, Channel]]:
    """Yield both ends of a link on which there is a stream."""
    far = InProcessTransport(TransportPlan(node="far", listen="inprocess://"))
    await far.start()
    near = InProcessTransport(TransportPlan(node="near"))
    yield Channel(await near.connect(far.address, "far")), Channel(await far.accept())
    await far.stop()


async def test_stream_over_which_no_node_answers_is_closed() -> None:
    transport = LonelyTransport(TransportPlan(node="near"))
    async with streaming() as (near, far), relayed(transport, relay=near) as paths:
        with pytest.raises(PeerLost, match="over a relay: node 'other' does not answer"):
            await soon(paths.reach("inprocess://nobody", "other"))
        with pytest.raises(PeerLost):
            await soon(far.receive())


async def test_machine_that_has_no_more_files_loses_no_more_than_the_link(monkeypatch: pytest.MonkeyPatch) -> None:
    async def start_server(*_: object, **__: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(asyncio, "start_server", start_server)
    transport = LonelyTransport(TransportPlan(node="near"))
    async with streaming() as (near, far), relayed(transport, relay=near) as paths:
        with pytest.raises(PeerLost, match="Too many open files"):
            await soon(paths.reach("inprocess://nobody", "other"))
        with pytest.raises(PeerLost):
            await soon(far.receive())


async def test_node_that_is_reached_at_once_is_not_asked_for_over_a_relay() -> None:
    ways = Ways()
    ways.direct.set()
    ways.relayed.set()
    async with relayed(ways, relay=True) as paths:
        path = await soon(paths.reach("inprocess://far", "far"))
    assert path.relay == ""
    assert ways.tried == ["direct"]
    await path.link.close()


async def test_relay_is_used_while_a_direct_link_is_still_tried() -> None:
    ways = Ways()
    ways.relayed.set()
    async with relayed(ways, broken=False, relay=True) as paths:
        path = await soon(paths.reach("inprocess://far", "far"))
    assert path.relay == "relay"
    assert ways.tried == ["direct", "relayed"]
    await path.link.close()


async def test_of_two_links_made_at_once_the_direct_one_stays_and_the_other_is_closed() -> None:
    ways = Ways()
    async with relayed(ways, relay=True) as paths:
        reaching = asyncio.create_task(paths.reach("inprocess://far", "far"))
        await until(lambda: "relayed" in ways.tried)
        ways.direct.set()
        ways.relayed.set()
        path = await soon(reaching)
    assert path.relay == ""
    with pytest.raises(PeerLost):
        await soon(ways.ends["relayed"].receive())
    await Channel(ways.ends["direct"]).send(ApiData(b"still there"))
    assert await soon(Channel(path.link).receive()) == ApiData(b"still there")
    await path.link.close()


async def test_node_that_is_not_reached_in_any_way_is_told_with_each_reason() -> None:
    async with relayed(Ways(), one=False, two=False) as paths:
        with pytest.raises(PeerLost) as caught:
            await soon(paths.reach("inprocess://refused", "far"))
    assert str(caught.value) == (
        "node 'far' does not listen; over a relay: the relay 'one' says: no such node; "
        "the relay 'two' says: no such node"
    )
    assert caught.value.hint == "start it"


async def test_relay_that_is_named_again_keeps_its_client_and_one_that_is_not_loses_it() -> None:
    def list_clients() -> set[asyncio.Task[object]]:
        return {task for task in asyncio.all_tasks() if task.get_coro().__qualname__ == "RelayClient.run"}  # type: ignore[union-attr]

    async with open_registry() as registry:
        paths = RelayPaths(LonelyTransport(TransportPlan(node="near")), "near")
        trusted = TrustedPeers(LonelyTransport(TransportPlan(node="near")))
        places = tuple(RelayPlace(name, registry.address) for name in ("desk", "attic"))
        async with paths.joined(Peer("head", registry.address)):
            paths.meet(Relays(places), trusted)
            both = list_clients()
            paths.meet(Relays(places[:1]), trusted)
            await until(lambda: len(list_clients()) == 1)
            assert (len(both), list_clients() <= both) == (2, True)
        assert list_clients() == set()

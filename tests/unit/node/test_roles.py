"""What a node may be to another, by the key it has proved."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import pytest
from msgspec.structs import replace

from parallax_cluster.node.profile.service import PURPOSES
from parallax_cluster.node.relay.paths import RelayPaths
from parallax_core.api import Epoch, Frame, PeerLost, TransportPlan
from parallax_core.builtin.inprocess import InProcessTransport
from parallax_core.contracts.transport import NodeRole
from parallax_core.node.channel import STRANGERS, Channel
from parallax_core.node.handshake import greet
from parallax_core.node.membership import registry as registry_module
from parallax_core.node.membership.registry import NodeRegistry
from parallax_core.node.trusted_peers import TrustedPeers
from parallax_core.node.worker.incoming import IncomingLinks
from parallax_core.node.worker.node_services import NodeServices
from parallax_core.node.worker.peers import PeerLinker
from parallax_core.node.worker.session import WorkerSession
from parallax_core.testing.node import open_toy
from parallax_core.wire.codec import VERSION_BYTE
from parallax_core.wire.membership import Hop, Join, Refusal
from tests.support.node_services import equip
from tests.unit.node.cluster import Node, call, soon, until
from tests.unit.node.keyed import KeyedTransport

JOIN = Join("inprocess://x", (), "here", 0)


@asynccontextmanager
async def keyed_registry(roles: Mapping[str, NodeRole]) -> AsyncIterator[tuple[NodeRegistry, KeyedTransport]]:
    transport = KeyedTransport(TransportPlan(node="head", listen="inprocess://"), roles)
    registry = equip(NodeRegistry(transport, "head"))
    await registry.start()
    try:
        yield registry, transport
    finally:
        await registry.stop()


async def test_node_whose_key_is_a_heads_may_not_join_and_is_told_so() -> None:
    async with keyed_registry({"mini": "head"}) as (registry, transport):
        channel = await call(registry, "mini")
        await channel.send(JOIN)
        refusal = await soon(channel.receive())
        assert isinstance(refusal, Refusal)
        assert refusal.message == "node 'mini' may not be a worker here: its key is allowed as head"
        assert "parallax keys allow" in refusal.hint
        with pytest.raises(PeerLost):
            await soon(channel.receive())
        assert registry.waiting == ()
        assert not transport.peers["mini"].is_admitted


@pytest.mark.parametrize("role", ["worker", "any"])
async def test_node_whose_key_is_a_workers_joins_and_is_admitted(role: NodeRole) -> None:
    async with keyed_registry({"mini": role}) as (registry, transport):
        channel = await call(registry, "mini")
        assert not transport.peers["mini"].is_admitted
        await channel.send(JOIN)
        await until(lambda: len(registry.waiting) == 1)
        assert transport.peers["mini"].is_admitted


async def test_worker_takes_no_stage_from_who_may_not_be_a_head() -> None:
    async with keyed_registry({}) as (registry, _):
        transport = KeyedTransport(TransportPlan(node="mini", listen="inprocess://"), {"head": "worker"})
        await transport.start()
        session = WorkerSession(NodeServices(transport), "mini", open_toy)
        with pytest.raises(PeerLost, match="'head' may not be a head here: its key is allowed as worker"):
            await soon(session.serve(registry.address, "head", JOIN))
        assert registry.waiting == ()
        await transport.stop()


@asynccontextmanager
async def linker(transport: KeyedTransport) -> AsyncIterator[PeerLinker]:
    """Yield what links the node ``mini`` to its neighbours."""
    incoming = IncomingLinks(transport, "mini", PURPOSES)
    try:
        async with incoming.accepting():
            yield PeerLinker(RelayPaths(transport, "mini"), "mini", incoming, TrustedPeers(transport))
    finally:
        await transport.stop()


async def test_neighbour_has_to_be_a_worker() -> None:
    transport = KeyedTransport(TransportPlan(node="mini", listen="inprocess://"), {"other": "head"})
    await transport.start()
    async with linker(transport) as neighbours:
        linking = asyncio.create_task(neighbours.link(Hop(Epoch(1), 1, "other", "", "")))
        near = Channel(await InProcessTransport(TransportPlan(node="other")).connect(transport.address, "mini"))
        greeting = asyncio.create_task(greet(near, "other"))
        with pytest.raises(PeerLost, match="'other' may not be a worker here"):
            await soon(linking)
        greeting.cancel()
        await asyncio.gather(greeting, return_exceptions=True)


async def test_next_stage_has_to_be_a_worker_and_gets_no_greeting_else() -> None:
    transport = KeyedTransport(TransportPlan(node="mini", listen="inprocess://"), {"other": "head"})
    await transport.start()
    other = InProcessTransport(TransportPlan(node="other", listen="inprocess://"))
    await other.start()
    async with linker(transport) as neighbours:
        with pytest.raises(PeerLost, match="'other' may not be a worker here") as raised:
            await soon(neighbours.link(Hop(Epoch(1), 0, "", "other", other.address)))
        assert raised.value.peer == "other"
        with pytest.raises(PeerLost):
            await soon((await other.accept()).receive())
    await other.stop()


async def test_neighbour_that_is_not_the_one_assigned_gets_no_link() -> None:
    """A key allowed as that of a worker is no more than that: the head says who is whose neighbour."""
    transport = KeyedTransport(
        TransportPlan(node="mini", listen="inprocess://"), {"rogue": "worker", "before": "worker"}
    )
    await transport.start()
    async with linker(transport) as neighbours:
        linking = asyncio.create_task(neighbours.link(Hop(Epoch(1), 1, "before", "", "")))
        rogue = Channel(await InProcessTransport(TransportPlan(node="rogue")).connect(transport.address, "mini"))
        with pytest.raises(PeerLost):
            await soon(greet(rogue, "rogue"))
        assert not transport.peers["rogue"].is_admitted
        honest = Channel(await InProcessTransport(TransportPlan(node="before")).connect(transport.address, "mini"))
        await soon(greet(honest, "before"))
        links = await soon(linking)
        assert links.before is not None
        assert links.before.peer == "before"


async def test_stranger_may_not_send_much_before_it_has_joined() -> None:
    async with keyed_registry({}) as (registry, _):
        near = InProcessTransport(TransportPlan(node="mini"))
        link = await near.connect(registry.address, "head")
        await link.send(Frame(VERSION_BYTE + bytes(STRANGERS.header_bytes)))
        with pytest.raises(PeerLost):
            await soon(link.receive())
        assert registry.waiting == ()


async def test_only_so_many_greet_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry_module, "MOST_GREETINGS", 3)
    async with keyed_registry({}) as (registry, transport):
        strangers = [
            await InProcessTransport(TransportPlan(node=f"s{number}")).connect(registry.address, "head")
            for number in range(5)
        ]
        await until(lambda: len(transport.peers) == 3)
        await asyncio.sleep(0.05)
        assert len(transport.peers) == 3
        await strangers[0].close()
        await until(lambda: len(transport.peers) == 4)


async def test_head_serves_on_while_strangers_hold_their_tongue() -> None:
    async with keyed_registry({}) as (registry, _):
        for number in range(20):
            await InProcessTransport(TransportPlan(node=f"s{number}")).connect(registry.address, "head")
        node = Node("honest")
        await node.join(registry.address)
        await until(lambda: [each.name for each in registry.waiting] == ["honest"])
        await node.kill()


async def test_one_machine_cannot_take_all_turns_to_greet() -> None:
    async with keyed_registry({}) as (registry, _):
        greedy = [
            await InProcessTransport(TransportPlan(node=f"greedy/{number}")).connect(registry.address, "head")
            for number in range(registry_module.MOST_GREETINGS + 5)
        ]
        with pytest.raises(PeerLost):
            await soon(greedy[-1].receive())
        node = Node("honest")
        await node.join(registry.address)
        await until(lambda: [each.name for each in registry.waiting] == ["honest"])
        await node.kill()


ROGUE_JOINS = [
    replace(JOIN, host="\x1b[2Jhere"),
    replace(JOIN, address="tcp://x\nWARNING forged"),
    replace(JOIN, backends=("mlx\x07",)),
    replace(JOIN, model="\u202emodel"),
    replace(JOIN, backends=("x",) * 65),
    replace(JOIN, address="x" * 4097),
    replace(JOIN, memory=2**60),
    replace(JOIN, pid=-1),
    replace(JOIN, start=-1),
]


@pytest.mark.parametrize("join", ROGUE_JOINS)
async def test_node_that_says_of_itself_what_cannot_be_is_cut_off(join: Join, caplog: pytest.LogCaptureFixture) -> None:
    async with keyed_registry({}) as (registry, transport):
        channel = await call(registry, "rogue")
        await channel.send(join)
        with pytest.raises(PeerLost):
            await soon(channel.receive())
        assert registry.waiting == ()
        assert not transport.peers["rogue"].is_admitted
        assert "turned away node=rogue" in caplog.text
        assert all(line.isprintable() for line in caplog.messages)

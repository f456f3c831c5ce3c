"""Nodes that cannot reach each other are linked over a third one."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path

import pytest

from parallax_cluster.node.relay.directory import RelayDirectory
from parallax_cluster.node.relay.host import RelayHost
from parallax_cluster.node.relay.limits import RelayLimits
from parallax_cluster.node.relay.offer import RelayOffer
from parallax_cluster.node.relay.server import RelayServer
from parallax_cluster.wire.profile import Peer
from parallax_cluster.wire.relay import Reach, Reached
from parallax_core.api import LayerRange, PeerLost, Request, RequestId, TransportPlan, keys_folder
from parallax_core.node.channel import Channel
from parallax_core.node.executor.remote import RemoteExecutor
from parallax_core.node.handshake import greet
from parallax_core.node.membership.assignment import StageAssignment
from parallax_core.node.membership.registry import NodeRegistry
from parallax_core.node.membership.supply import NodeSupply
from parallax_core.node.pipeline.engine import PipelineEngine
from parallax_core.node.worker.session import WorkerSession
from parallax_core.testing.node import BACKEND, name_toy, open_toy_layers
from parallax_core.testing.toy import GREEDY, Toy
from parallax_core.wire.membership import Join
from parallax_transport_zmq.keyring import Keyring
from parallax_transport_zmq.transport import ZmqTransport
from tests.support.node_services import equip, make_services
from tests.support.zmq_nodes import LOOPBACK, Wire, eventually, plan_node, started

TOY = Toy(("full", "window", "full"))
UNREACHABLE = "tcp://127.0.0.1:1"
"""Where nothing listens."""


@dataclass
class Cluster:
    relays: list[RelayServer]
    stops: dict[str, Callable[[], Awaitable[None]]]
    """Ends a relay, by its name."""
    ports: dict[str, int]
    """Where each node listens."""
    executor: RemoteExecutor


async def end(serving: asyncio.Task[None], session: WorkerSession | None = None) -> None:
    serving.cancel()
    await asyncio.gather(serving, return_exceptions=True)
    if session is not None:
        await session.close()


def make_role(stage: int) -> StageAssignment:
    layers = LayerRange(stage, stage + 1)
    return StageAssignment(stage=stage, layers=layers, model=name_toy(TOY), heartbeat_s=0.05, node=f"n{stage}")


@asynccontextmanager
async def cluster(num_relays: int = 0, address: str = UNREACHABLE) -> AsyncIterator[Cluster]:
    """Run a head and three nodes that cannot reach each other, with relays of their own, or that of the head."""
    async with AsyncExitStack() as stack:
        registry = equip(NodeRegistry(ZmqTransport(plan_node("head", LOOPBACK)), "head"))
        relays = [RelayServer(RelayLimits(), registry.has)]
        registry.services.find(RelayDirectory).server = relays[0] if not num_relays else None
        await registry.start()
        stack.push_async_callback(registry.stop)
        stops: dict[str, Callable[[], Awaitable[None]]] = {}
        for number in range(num_relays):
            offer = RelayOffer(RelayLimits())
            transport = await stack.enter_async_context(started(plan_node(f"relay{number}", LOOPBACK)))
            stops[f"relay{number}"] = transport.stop
            host = RelayHost(transport, f"relay{number}", offer)
            stack.push_async_callback(end, asyncio.create_task(host.serve(Peer("head", registry.address))))
            relays.append(offer.server)
        ports: dict[str, int] = {}
        for stage in range(3):
            transport = await stack.enter_async_context(started(plan_node(f"n{stage}", LOOPBACK)))
            session = WorkerSession(make_services(transport, f"n{stage}"), f"n{stage}", open_toy_layers)
            ports[f"n{stage}"] = int(transport.address.rpartition(":")[2])
            join = Join(address, (BACKEND,), "here", 0)
            serving = asyncio.create_task(session.serve(registry.address, "head", join))
            stack.push_async_callback(end, serving, session)
        yield Cluster(
            relays, stops, ports, RemoteExecutor([make_role(stage) for stage in range(3)], NodeSupply(registry))
        )


@pytest.mark.parametrize("num_relays", [pytest.param(0, marks=pytest.mark.nightly), 2])
async def test_stages_that_cannot_reach_each_other_equal_the_whole(num_relays: int) -> None:
    async with cluster(num_relays) as made, asyncio.timeout(20):
        engine = PipelineEngine(made.executor, lambda tokens: "x" * len(tokens), None)
        await engine.start()
        request = Request(id=RequestId("1"), prompt=(1, 2, 3), max_tokens=20, sampling=GREEDY)
        tokens = [token async for delta in engine.submit(request) for token in delta.tokens]
        assert sum(relay.num_streams for relay in made.relays) == 2
        names = {"head"} if not num_relays else {"relay0", "relay1"}
        used = [where.relay for where in engine.locations()]
        assert {*used[:2]} <= names
        assert used[2] == ""
        await engine.stop()
        assert tokens == TOY.continuation((1, 2, 3), 20)


@dataclass
class Apart:
    """A head, a relay and two nodes that it links, each with a key of its own."""

    head: Keyring
    nodes: dict[str, ZmqTransport]
    relay: RelayServer
    executor: RemoteExecutor


@asynccontextmanager
async def machines(folder: Path, patch: pytest.MonkeyPatch) -> AsyncIterator[Apart]:
    def enter(machine: str) -> Keyring:
        patch.setenv("PARALLAX_HOME", str(folder / machine))
        return Keyring(keys_folder())

    async with AsyncExitStack() as stack:
        ring, offer = enter("server"), RelayOffer(RelayLimits())
        heads = {"head": ring.ensure_pair("head").public}
        registry = equip(NodeRegistry(ZmqTransport(TransportPlan(node="head", listen=LOOPBACK)), "head"))
        await registry.start()
        stack.push_async_callback(registry.stop)
        nodes: dict[str, ZmqTransport] = {}
        for name in ("desk", "n0", "n1"):
            ring.allow(enter(name).ensure_pair(name).public, name, "worker")
            plan = TransportPlan(node=name, listen=LOOPBACK, heads=heads)
            nodes[name] = await stack.enter_async_context(started(plan))
        host = RelayHost(nodes["desk"], "desk", offer)
        stack.push_async_callback(end, asyncio.create_task(host.serve(Peer("head", registry.address))))
        for name in ("n0", "n1"):
            session = WorkerSession(make_services(nodes[name], name), name, open_toy_layers)
            serving = session.serve(registry.address, "head", Join(UNREACHABLE, (BACKEND,), "here", 0))
            stack.push_async_callback(end, asyncio.create_task(serving), session)
        roles = [make_role(0), replace(make_role(1), layers=LayerRange(1, 3))]
        yield Apart(ring, nodes, offer.server, RemoteExecutor(roles, NodeSupply(registry)))


async def receive_all(channel: Channel) -> None:
    while True:
        await channel.receive()


async def test_links_over_a_relay_end_when_the_key_of_their_user_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The head alone knows: the relay, another machine, ends also a stream that the removed node would keep."""
    async with machines(tmp_path, monkeypatch) as made, asyncio.timeout(30):
        engine, relay = PipelineEngine(made.executor, lambda tokens: "x" * len(tokens), None), made.relay
        await engine.start()
        request = Request(id=RequestId("1"), prompt=(1, 2, 3), max_tokens=9, sampling=GREEDY)
        tokens = [token async for delta in engine.submit(request) for token in delta.tokens]
        assert tokens == TOY.continuation((1, 2, 3), 9)
        assert ([where.relay for where in engine.locations()], relay.num_streams) == (["desk", ""], 1)
        kept = Channel(await made.nodes["n0"].connect(made.nodes["desk"].address, "desk"))
        kept.learn([Reached])
        await greet(kept, "n0", "stream")
        await kept.send(Reach("n1"))
        assert await kept.receive() == Reached()
        assert relay.num_streams == 2
        made.head.remove("n0", own=False)
        with pytest.raises(PeerLost, match="your key is no longer allowed"):
            await receive_all(kept)
        await eventually(lambda: relay.num_streams == 0)
        assert {name: relay.is_member(name) for name in ("n0", "n1")} == {"n0": False, "n1": True}
        assert set(relay.reachable) == {"n1"}
        await engine.stop()


async def test_answers_go_on_over_another_relay_when_one_ends() -> None:
    async with cluster(num_relays=2) as made, asyncio.timeout(30):
        engine = PipelineEngine(made.executor, lambda tokens: "x" * len(tokens), None)
        await engine.start()
        for number in range(2):
            request = Request(id=RequestId(f"{number}"), prompt=(1, 2, 3), max_tokens=200, sampling=GREEDY)
            tokens: list[int] = []
            async for delta in engine.submit(request):
                if not number and len(tokens) < 20 <= len(tokens) + len(delta.tokens):
                    await made.stops[engine.locations()[0].relay]()
                tokens.extend(delta.tokens)
            assert tokens == TOY.continuation((1, 2, 3), 200)
        [left] = {where.relay for where in engine.locations()[:2]}
        assert left in made.stops
        await engine.stop()


async def test_relayed_links_become_direct_in_mid_answer_without_a_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("parallax_cluster.node.relay.upgrade.AGAIN_S", 0.1)
    losses: list[str] = []
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    async with cluster(address=f"tcp://127.0.0.1:{port}") as made, asyncio.timeout(30):
        engine = PipelineEngine(made.executor, lambda tokens: "x" * len(tokens), None, losses.append)
        await engine.start()
        assert [where.relay for where in engine.locations()] == ["head", "head", ""]
        asking = asyncio.create_task(ask_on(engine))
        wire = Wire(
            made.ports["n1"]
        )  # only the address of the second stage leads somewhere: that of the third does not
        server = await asyncio.start_server(wire.serve, "127.0.0.1", port)
        await eventually(lambda: engine.locations()[0].relay == "")
        assert not asking.done(), "steps go over the link while it is replaced"
        await asking
        assert [where.relay for where in engine.locations()] == ["", "head", ""]
        assert losses == []
        await eventually(lambda: made.relays[0].num_streams == 1)
        await engine.stop()
        server.close()
        await wire.stop()


async def ask_on(engine: PipelineEngine) -> None:
    """Ask again and again until the first link is direct, and once more, and check the answers."""
    for number in count():
        was_direct = engine.locations()[0].relay == ""
        request = Request(id=RequestId(f"{number}"), prompt=(1, 2, 3), max_tokens=200, sampling=GREEDY)
        tokens = [token async for delta in engine.submit(request) for token in delta.tokens]
        assert tokens == TOY.continuation((1, 2, 3), 200)
        if was_direct:
            return

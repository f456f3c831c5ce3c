"""Coordinators, standbys and nodes in one process, with the toy model."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import msgspec
import pytest

from parallax_core.api import TransportPlan
from parallax_core.base.errors import ParallaxError, PeerLost
from parallax_core.builtin.inprocess import InProcessTransport
from parallax_core.cluster.membership.standby_state import StandbyState
from parallax_core.cluster.membership.succession import Term
from parallax_core.node.channel import Channel
from parallax_core.node.handshake import greet
from parallax_core.node.membership.registry import NodeRegistry
from parallax_core.node.membership.standby import Follower
from parallax_core.node.membership.standbys import Standbys
from parallax_core.node.worker.terms import HeadTerms, show_term
from parallax_core.wire.messages import Message, Purpose
from parallax_core.wire.profile import Peer
from parallax_core.wire.succession import ClusterState, Succession
from tests.unit.node.cluster import Node, open_registry, soon, until

STATE = StandbyState(cluster=b"c", term=1, model="toy")


@dataclass
class Bench:
    """A coordinator."""

    registry: NodeRegistry
    state: StandbyState = STATE
    ends: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        term = Term(self.state.cluster, self.state.term)
        self.standbys = Standbys(self.registry, term, lambda: self.state, self.ends.append)


@asynccontextmanager
async def coordinating(state: StandbyState = STATE) -> AsyncIterator[Bench]:
    async with open_registry() as registry:
        bench = Bench(registry, state)
        bench.standbys.start()
        try:
            yield bench
        finally:
            await bench.standbys.stop()


async def call(bench: Bench, purpose: Purpose = "standby") -> Channel:
    transport = InProcessTransport(TransportPlan(node="desk/standby"))
    channel = Channel(await transport.connect(bench.registry.address, "head"))
    await soon(greet(channel, "desk/standby", purpose))
    return channel


class Standby(Follower):
    """A standby that notes what it hears."""

    def __init__(self, bench: Bench) -> None:
        self.heard: list[tuple[StandbyState, bool]] = []
        transport = InProcessTransport(TransportPlan(node="desk/standby"))
        super().__init__(transport, bench.registry.address, "desk/standby", "inprocess://next", self.hear)

    def hear(self, state: StandbyState, is_linked: bool) -> None:
        self.heard.append((state, is_linked))


async def test_standby_hears_the_state_and_every_change() -> None:
    async with coordinating() as bench:
        standby = Standby(bench)
        following = asyncio.create_task(standby.run())
        await until(lambda: bench.standbys.names == ["desk/standby"])
        await until(lambda: (STATE, True) in standby.heard)
        bench.state = msgspec.structs.replace(STATE, machines={"kitchen": b"key"})
        await until(lambda: (bench.state, True) in standby.heard)
        standby.promote()
        state = await soon(following)
        assert (state.term, state.machines) == (2, {"kitchen": b"key"})
        await until(lambda: bench.ends != [])
        assert "its term is 2, and that of this one was 1" in bench.ends[0]
        await until(lambda: not bench.standbys.names)


async def test_machine_that_may_run_stages_only_cannot_stand_by(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(channel: Channel, role: str) -> None:
        if (channel.peer, role) == ("desk/standby", "head"):
            raise PeerLost("its key is allowed as worker")

    monkeypatch.setattr(Channel, "check_role", refuse)
    async with coordinating() as bench:
        standby = Standby(bench)
        with pytest.raises(ParallaxError, match="machine 'desk' may run stages of this cluster") as caught:
            await soon(standby.run())
        assert "desk --role any" in caught.value.hint
        assert not bench.standbys.term.heads


async def test_standby_follows_again_and_can_take_over_without_the_coordinator() -> None:
    async with coordinating() as bench:
        standby = Standby(bench)
        following = asyncio.create_task(standby.run())
        await until(lambda: standby.state is not None)
    await until(lambda: (STATE, False) in standby.heard)
    assert not following.done()
    standby.promote()
    assert (await soon(following)).term == 2


async def test_standby_that_has_heard_nothing_does_not_take_over() -> None:
    async with open_registry() as registry:
        standby = Standby(Bench(registry))
        following = asyncio.create_task(standby.run())
        standby.promote()
        await asyncio.sleep(0.05)
        assert not following.done()
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)


async def test_standby_does_not_follow_an_older_coordinator() -> None:
    async with coordinating() as bench:
        standby = Standby(bench)
        standby.state = msgspec.structs.replace(STATE, term=5)
        following = asyncio.create_task(standby.run())
        await until(lambda: standby.heard != [])
        assert standby.heard[0] == (standby.state, False)
        assert standby.state.term == 5
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)


async def test_nodes_are_told_of_the_term_and_of_standbys_that_come_later() -> None:
    async with coordinating() as bench:
        node = Node("kitchen")
        await node.join(bench.registry.address)
        await until(lambda: node._session is not None and bool(bench.registry.joined))
        assert node._session is not None
        node._session.terms = terms = HeadTerms("", {})
        channel = await call(bench)
        await channel.send(Succession(b"", 0, (Peer("head", "inprocess://next"),)))
        await until(lambda: "inprocess://next" in terms.others)
        await channel.leave()
        await node.kill()


async def test_node_that_knows_a_newer_term_says_so_and_leaves() -> None:
    async with coordinating() as bench:
        terms = HeadTerms("", {})
        terms.note(show_term(Term(b"c", 4)))
        node = Node("kitchen")
        await node.join(bench.registry.address)
        await until(lambda: node._session is not None)
        assert node._session is not None
        node._session.terms = terms
        await until(lambda: bool(bench.registry.joined))
        bench.standbys._start(bench.standbys._tell(bench.registry.joined[0].channel))
        await until(lambda: bench.ends != [])
        assert "its term is 4" in bench.ends[0]
        await until(lambda: node.losses != [])
        await node.kill()


async def test_one_machine_of_several_cannot_end_a_coordinator_by_what_it_says() -> None:
    async with coordinating() as bench:
        nodes = [Node(name) for name in ("kitchen/1", "kitchen/2", "desk/1", "attic/1", "local/0")]
        for node in nodes:
            await node.join(bench.registry.address)
        await until(lambda: len(bench.registry.joined) == len(nodes))
        joined = {node.name: node for node in bench.registry.joined}
        newer = show_term(Term(b"c", 9))
        for name in ("kitchen/1", "kitchen/2"):
            bench.standbys._hear_node(joined[name], newer)
        bench.standbys._hear_node(joined["desk/1"], show_term(Term(b"other", 9)))
        assert bench.ends == []
        bench.standbys._hear_node(joined["desk/1"], newer)
        assert len(bench.ends) == 1, "two of three machines"
        for node in nodes:
            await node.kill()


@pytest.mark.parametrize(
    "message", [ClusterState(b""), Succession(b"", 0), Succession(b"", 0, (Peer("a", "b"), Peer("c", "d")))]
)
async def test_standby_that_does_not_say_where_it_would_listen_is_cut_off(message: Message) -> None:
    async with coordinating() as bench:
        channel = await call(bench)
        await channel.send(message)
        with pytest.raises(PeerLost):
            await soon(channel.receive())
        assert not bench.standbys.term.heads


async def test_server_without_standbys_turns_one_away() -> None:
    async with open_registry() as registry:
        channel = await call(Bench(registry))
        with pytest.raises(PeerLost):
            await soon(channel.receive())


async def test_so_many_standbys_are_remembered_and_no_more() -> None:
    def find_last(bench: Bench) -> str:
        heads = bench.standbys.term.heads
        return heads[-1].address if heads else ""

    async with coordinating() as bench:
        for number in range(20):
            address, channel = f"inprocess://{number}", await call(bench)
            await channel.send(Succession(b"", 0, (Peer("head", address),)))
            while find_last(bench) != address:  # noqa: ASYNC110 -- nobody tells
                await asyncio.sleep(0.005)
            await channel.leave()
        assert len(bench.standbys.term.heads) == 16

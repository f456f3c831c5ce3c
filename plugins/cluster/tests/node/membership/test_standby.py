"""Coordinators, standbys and nodes in one process, with the toy model."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pytest

from parallax_cluster.membership.standby_state import AcceptedStandby, StandbyState
from parallax_cluster.membership.succession import Term
from parallax_cluster.membership.term_proof import TermProof, judge, read_proof, take_over, write_proof
from parallax_cluster.node.membership import standbys
from parallax_cluster.node.membership.own_term import OwnTerm, open_term
from parallax_cluster.node.membership.standby import Candidacy, Follower
from parallax_cluster.node.membership.standbys import Standbys
from parallax_cluster.node.membership.term_store import TermStore
from parallax_cluster.node.worker.terms import HeadTerms
from parallax_cluster.wire.profile import Peer
from parallax_cluster.wire.succession import ClusterState, Succession
from parallax_core.api import JoinedPeer, NodeService, Takers, TransportPlan
from parallax_core.base.errors import ParallaxError, PeerLost
from parallax_core.builtin.inprocess import InProcessTransport
from parallax_core.node.channel import Channel
from parallax_core.node.handshake import greet
from parallax_core.node.membership.registry import NodeRegistry
from parallax_core.node.worker.node_services import WorkerService
from parallax_core.wire.messages import Message, Purpose
from plugins.cluster.tests.membership.terms import OLD, ONE, STRANGER, TWO, Machine, forge
from tests.unit.node.cluster import Node, open_registry, soon, until
from tests.unit.wire.damage import KINDS

STATE = StandbyState(cluster=b"c", term=1, model="toy")


@dataclass
class Bench:
    """A coordinator."""

    registry: NodeRegistry
    folder: Path
    changes: dict[str, Any] = field(default_factory=dict)
    ends: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        store = TermStore(self.folder / "coordinator")
        store.keep(STATE)
        self.own = open_term(store, OLD.signing, b"", "toy", is_new=False)
        self.standbys = Standbys(self.registry, self.own, lambda: self.state, self.ends.append)

    @property
    def state(self) -> StandbyState:
        """What standbys are told."""
        return msgspec.structs.replace(self.own.state, **self.changes)

    def take_over(self) -> TermProof:
        """Return the proof of a standby that it has accepted, and that has taken over."""
        self.own.accept(AcceptedStandby(machine="one", key=b"", signer=ONE.signer))
        return take_over(self.own.proof, ONE.signing, b"")


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path


@asynccontextmanager
async def coordinating(folder: Path) -> AsyncIterator[Bench]:
    async with open_registry() as registry:
        bench = Bench(registry, folder)
        bench.standbys.start()
        try:
            yield bench
        finally:
            await bench.standbys.stop()


async def call(bench: Bench, purpose: Purpose = "standby") -> Channel:
    transport = InProcessTransport(TransportPlan(node="desk/standby"))
    channel = Channel(await transport.connect(bench.registry.address, "head"))
    channel.learn(KINDS.values())
    await soon(greet(channel, "desk/standby", purpose))
    return channel


def offer(machine: Machine, address: str = "inprocess://next") -> Succession:
    """Return the message by which a machine offers itself as a standby."""
    return Candidacy(address, b"", machine.signing).introduce()


class Standby(Follower):
    """A standby that notes what it hears."""

    def __init__(self, bench: Bench, machine: Machine = TWO) -> None:
        self.heard: list[tuple[StandbyState, bool]] = []
        transport = InProcessTransport(TransportPlan(node="desk/standby"))
        candidacy = Candidacy("inprocess://next", b"", machine.signing)
        super().__init__(transport, bench.registry.address, "desk/standby", candidacy, self.hear)

    def hear(self, state: StandbyState, is_linked: bool) -> None:
        self.heard.append((state, is_linked))


async def test_standby_hears_the_state_and_every_change_and_takes_over_with_a_proof(home: Path) -> None:
    async with coordinating(home) as bench:
        standby = Standby(bench)
        following = asyncio.create_task(standby.run())
        await until(lambda: bench.standbys.names == ["desk/standby"])
        await until(lambda: (bench.state, True) in standby.heard)
        bench.changes["machines"] = {"kitchen": b"key"}
        await until(lambda: (bench.state, True) in standby.heard)
        before = bench.own.proof
        standby.promote()
        state = await soon(following)
        assert (state.term, state.machines) == (2, {"kitchen": b"key"})
        assert judge(before, read_proof(state.proof)) == "newer"
        await until(lambda: bench.ends != [])
        assert "its term is 2, and that of this one was 1" in bench.ends[0]
        assert bench.own.state.newer == state.proof
        await until(lambda: not bench.standbys.names)


async def test_standby_of_which_the_signing_key_is_not_accepted_cannot_take_over(home: Path) -> None:
    async with coordinating(home) as bench:
        standby = Standby(bench)
        following = asyncio.create_task(standby.run())
        await until(lambda: standby.state is not None)
        bench.own.keep_only(lambda _: False)
        await until(lambda: standby.state == bench.state)
        assert not standby.candidacy.is_accepted(bench.state)
        standby.promote()
        with pytest.raises(ParallaxError, match="no coordinator of this cluster has accepted this machine"):
            await soon(following)
        assert bench.ends == []


async def test_chain_of_standbys_is_proved_and_those_before_may_serve_again(home: Path) -> None:
    async with coordinating(home) as bench:
        bench.own.accept(AcceptedStandby(machine="two", key=b"k", signer=TWO.signer, address="inprocess://two"))
        bench.take_over()
        one, old = (Candidacy("inprocess://x", b"", each.signing) for each in (ONE, OLD))
        first = one.promote(bench.state, "inprocess://old")
    assert [(each.machine, each.address) for each in first.standbys] == [
        ("two", "inprocess://two"), ("server-1", "inprocess://old")
    ]  # fmt: skip
    assert [each.signer for each in first.standbys] == [TWO.signer, OLD.signer]

    again = old.promote(first, "inprocess://one")
    assert (again.term, read_proof(again.proof).signers) == (3, [OLD.signer])
    assert judge(read_proof(first.proof), read_proof(again.proof)) == "newer"
    assert [(each.machine, each.address) for each in again.standbys] == [
        ("two", "inprocess://two"), ("server-2", "inprocess://one")
    ]  # fmt: skip
    assert [each.signer for each in again.standbys] == [TWO.signer, ONE.signer]


def refuse_standby(channel: Channel, role: str) -> None:
    if (channel.peer, role) == ("desk/standby", "head"):
        raise PeerLost("its key is allowed as worker")


async def test_machine_that_may_run_stages_only_cannot_stand_by(monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    monkeypatch.setattr(Channel, "check_role", refuse_standby)
    async with coordinating(home) as bench:
        standby = Standby(bench)
        with pytest.raises(ParallaxError, match="machine 'desk' may run stages of this cluster") as caught:
            await soon(standby.run())
        assert "desk --role any" in caught.value.hint
        assert not bench.own.heads


async def test_standby_follows_again_and_can_take_over_without_the_coordinator(home: Path) -> None:
    async with coordinating(home) as bench:
        standby = Standby(bench)
        following = asyncio.create_task(standby.run())
        await until(lambda: standby.state is not None)
    await until(lambda: (standby.state, False) in standby.heard)
    assert not following.done()
    standby.promote()
    assert (await soon(following)).term == 2


async def test_standby_looks_whether_a_coordinator_is_there(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with coordinating(home) as bench:
        looking = Standby(bench)
        state = await soon(looking.look())
        assert state is not None
        assert (state.term, state.proof) == (1, bench.state.proof)
        monkeypatch.setattr(Channel, "check_role", refuse_standby)
        with pytest.raises(ParallaxError, match="may run stages"):
            await soon(Standby(bench).look())
        monkeypatch.undo()
    assert await soon(Standby(bench).look()) is None


async def test_standby_that_has_heard_nothing_does_not_take_over(home: Path) -> None:
    async with open_registry() as registry:
        standby = Standby(Bench(registry, home))
        following = asyncio.create_task(standby.run())
        standby.promote()
        await asyncio.sleep(0.05)
        assert not following.done()
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)


async def test_standby_does_not_follow_an_older_coordinator(home: Path) -> None:
    async with coordinating(home) as bench:
        newer = bench.take_over()
        standby = Standby(bench)
        standby.state = msgspec.structs.replace(STATE, term=2, proof=write_proof(newer))
        following = asyncio.create_task(standby.run())
        await until(lambda: standby.heard != [])
        assert standby.heard[0] == (standby.state, False)
        assert standby.state.term == 2
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)


async def test_standby_does_not_follow_a_coordinator_that_proves_nothing(
    home: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with coordinating(home) as bench:
        bench.changes["proof"] = b""
        standby = Standby(bench)
        following = asyncio.create_task(standby.run())
        await until(lambda: "sent a state that cannot be read" in caplog.text)
        assert standby.heard == []
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)


class ToldTerms(HeadTerms):
    """What a node knows of terms; notes all that it is told."""

    def __init__(self, address: str, keys: dict[str, bytes]) -> None:
        super().__init__(address, keys)
        self.told: list[Succession] = []

    def note(self, told: Succession, key: bytes = b"") -> Term | None:
        self.told.append(told)
        return super().note(told, key)


class Talker(WorkerService):
    """Sends a message of a node to its coordinator."""

    @asynccontextmanager
    async def joined(self, peer: JoinedPeer) -> AsyncIterator[Takers]:
        self.tell = peer.channel.send
        yield {}


async def join(bench: Bench, *names: str, services: Sequence[NodeService] = ()) -> list[Node]:
    """Have nodes join that have no idea of terms, but for that of ``services``."""
    nodes = [Node(name) for name in names]
    for node in nodes:
        node.services = [*services]
        await node.join(bench.registry.address)
    await until(lambda: len(bench.registry.joined) == len(nodes))
    return nodes


async def test_nodes_are_told_of_the_term_and_of_standbys_that_come_later(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(standbys, "BEAT_S", 0.02)
    async with coordinating(home) as bench:
        terms = HeadTerms("", {})
        [node] = await join(bench, "kitchen", services=[terms])
        channel = await call(bench)
        await channel.send(offer(ONE))
        await until(lambda: "inprocess://next" in terms.heads)
        await channel.leave()
        monkeypatch.setattr(bench.registry, "find_role", lambda _: "worker")  # the standby's key is taken back
        await until(lambda: "inprocess://next" not in terms.heads)
        await node.kill()


async def test_nodes_that_have_joined_before_are_told_of_the_term(home: Path) -> None:
    async with open_registry() as registry:
        bench = Bench(registry, home)
        terms = HeadTerms("inprocess://head", {})
        [node] = await join(bench, "kitchen", services=[terms])
        bench.standbys.start()
        await until(lambda: terms.heads == ["inprocess://head"])
        await bench.standbys.stop()
        await node.kill()


async def test_standby_whose_key_is_taken_back_may_not_take_over(
    home: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(standbys, "BEAT_S", 0.02)
    async with coordinating(home) as bench:
        terms, talker = ToldTerms("", {}), Talker()
        newer = bench.take_over()
        [node] = await join(bench, "kitchen", services=[terms, talker])
        await until(lambda: terms.told != [])
        monkeypatch.setattr(bench.registry, "find_role", lambda _: "worker")
        await until(lambda: bench.own.heads == () and bench.own.state.standbys == [])
        await until(lambda: terms.told[-1].proof == write_proof(bench.own.proof))
        assert terms.note(Succession(write_proof(newer))) is not None, "the node refuses it"
        await talker.tell(Succession(write_proof(newer)))
        await until(lambda: "node tells a term that is not proved" in caplog.text)
        assert bench.ends == []
        await node.kill()


async def test_node_that_knows_a_newer_term_proves_it_and_leaves(home: Path) -> None:
    async with coordinating(home) as bench:
        terms = HeadTerms("", {})
        terms.note(Succession(write_proof(bench.take_over())))
        [node] = await join(bench, "kitchen", services=[terms])
        await until(lambda: bench.ends != [])
        assert "its term is 2" in bench.ends[0]
        await until(lambda: node.losses != [])
        await node.kill()


async def test_machines_that_claim_a_term_without_a_proof_are_not_believed(
    home: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with coordinating(home) as bench:
        lies = [
            Succession(write_proof(STRANGER.begin(cluster=b"c", term=9))),
            Succession(write_proof(STRANGER.claim(bench.own.proof, 9, b"c"))),
            Succession(write_proof(forge(bench.own.proof, 0, term=9))),
            Succession(b""),
        ]
        for number, lie in enumerate(lies, 1):
            [node] = await join(bench, f"kitchen/{number}", services=[talker := Talker()])
            await talker.tell(lie)
            await until(lambda: caplog.text.count("node tells a term that is not proved") == number)  # noqa: B023
            await node.kill()
        assert bench.ends == []


async def test_node_is_heard_once_on_a_link(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[bytes] = []

    def hear(self: OwnTerm, data: bytes) -> int:
        looked.append(data)
        return 0

    monkeypatch.setattr(OwnTerm, "hear", hear)
    async with coordinating(home) as bench:
        [node] = await join(bench, "kitchen", services=[talker := Talker()])
        for number in range(20):
            await talker.tell(Succession(bytes([number])))
        await until(lambda: looked == [b"\0"])
        await asyncio.sleep(0.05)
        assert looked == [b"\0"]
        await node.kill()


@pytest.mark.parametrize(
    "message",
    [
        ClusterState(b""),
        Succession(b""),
        Succession(offer(ONE).proof),
        Succession(offer(ONE).proof, (Peer("a", "b"), Peer("c", "d"))),
        Succession(b"", offer(ONE).heads),
        Succession(write_proof(forge(read_proof(offer(ONE).proof), 0, key=b"k")), offer(ONE).heads),
    ],
)
async def test_standby_that_does_not_say_where_it_would_listen_is_cut_off(
    message: Message, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(standbys, "FIRST_S", 0.3)
    async with coordinating(home) as bench:
        channel = await call(bench)
        await channel.send(message)
        with pytest.raises(PeerLost):
            await soon(channel.receive())
        assert not bench.own.heads


async def test_server_without_standbys_turns_one_away(home: Path) -> None:
    async with open_registry() as registry:
        channel = await call(Bench(registry, home))
        with pytest.raises(PeerLost):
            await soon(channel.receive())


async def test_so_many_standbys_are_remembered_and_no_more(home: Path) -> None:
    async with coordinating(home) as bench:
        for number in range(20):
            address, channel = f"inprocess://{number}", await call(bench)
            await channel.send(offer(Machine(str(number)), address))
            await until(lambda wanted=address: wanted in {each.address for each in bench.own.heads})  # type: ignore[misc]
            await channel.leave()
        assert len(bench.own.heads) == 16


def test_offer_claims_no_cluster_and_no_term() -> None:
    stated = read_proof(offer(ONE).proof).latest
    assert (stated.signer, stated.cluster, stated.term, stated.version) == (ONE.signer, b"", 0, 0)

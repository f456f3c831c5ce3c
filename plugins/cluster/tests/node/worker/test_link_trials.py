from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import pytest

from parallax_cluster.node.profile.reporter import NodeReporter
from parallax_cluster.node.relay.paths import RelayPaths
from parallax_cluster.node.worker import link_trials as module
from parallax_cluster.node.worker.link_trials import MOST_TRUSTED, LinkTrials
from parallax_cluster.wire.profile import LinkTried, Peer, TryLink
from parallax_core.api import TransportPlan
from parallax_core.builtin.inprocess import InProcessTransport
from parallax_core.node.trusted_peers import TrustedPeers
from tests.unit.node.cluster import Node, soon
from tests.unit.node.keyed import KeyedTransport
from tests.unit.node.parted import Walls
from tests.unit.node.worker.test_session import Bench, joined


@asynccontextmanager
async def other_node() -> AsyncIterator[Node]:
    """Run another node, which has joined a head, too."""
    async with joined() as bench:
        node = bench.node
        yield node


async def ask(bench: Bench, peer: Peer) -> LinkTried:
    await bench.say(TryLink(peer))
    told = await bench.hear()
    assert isinstance(told, LinkTried)
    return told


async def test_node_says_whether_it_reaches_another_one() -> None:
    async with joined() as bench, other_node() as other:
        peer = Peer(other.name, other.transport.address)
        assert await ask(bench, peer) == LinkTried("attic", is_reached=True)
        told = await ask(bench, Peer("nobody", "inprocess://nobody"))
        assert (told.peer, told.is_reached) == ("nobody", False)
        assert "no node listens at inprocess://nobody" in told.reason


async def test_node_that_does_not_answer_is_not_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TRY_S", 0.05)
    mute = InProcessTransport(TransportPlan(node="mute", listen="inprocess://"))
    await mute.start()
    async with joined() as bench:
        told = await ask(bench, Peer("mute", mute.address))
        assert (told.is_reached, "does not answer" in told.reason) == (False, True)
    await mute.stop()


async def test_node_that_only_expects_a_link_tries_none() -> None:
    walls = Walls()
    nodes = walls.build("attic")
    head = InProcessTransport(TransportPlan(node="head", listen="inprocess://"))
    await head.start()
    node = await nodes["attic"].join(head.address)
    bench = Bench(node, head, None, None)  # type: ignore[arg-type]
    await bench.again()
    await bench.say(TryLink(Peer("far", "inprocess://far", b"key", is_measured=False)))
    await ask(bench, Peer("nobody", "inprocess://nobody"))
    assert {other for _, other in walls.attempts} == {"nobody"}
    await node.kill()
    await head.stop()


class KeyringTransport(KeyedTransport):
    """A transport that keeps the keys of the nodes to which it is introduced."""

    trusted: Mapping[str, bytes] = {}

    def introduce(self, keys: Mapping[str, bytes]) -> None:
        self.trusted = keys


async def test_keys_of_the_newest_are_kept() -> None:
    transport = KeyringTransport(TransportPlan(node="mini", listen="inprocess://"), {})
    reporter = NodeReporter(lambda: None)
    trials = LinkTrials(RelayPaths(transport, "mini"), "mini", TrustedPeers(transport), reporter)
    for number in range(MOST_TRUSTED + 3):
        peer = Peer(f"node {number}", "inprocess://nobody", bytes([number]), is_measured=False)
        trials.take(None, TryLink(peer))  # type: ignore[arg-type]
    assert len(transport.trusted) == MOST_TRUSTED
    assert transport.trusted[f"node {MOST_TRUSTED + 2}"] == bytes([MOST_TRUSTED + 2])
    await asyncio.wait_for(soon(trials.close()), 5)

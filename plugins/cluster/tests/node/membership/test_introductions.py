from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from parallax_cluster.node.membership import introductions
from parallax_cluster.node.membership.introductions import (
    MOST_MEASURED,
    Introducer,
    choose_peers,
    describe,
)
from parallax_cluster.wire.profile import Peer
from parallax_core.api import Frame, Link, PeerLost
from parallax_core.node.channel import Channel
from parallax_core.wire.membership import Join
from tests.unit.node.cluster import Node, joined, open_registry, soon, until


class NamedLink:
    """A link of which only the name is known, and the number of frames that were sent over it."""

    def __init__(self, peer: str) -> None:
        self.peer = peer
        self.num_sent = 0
        self.is_lost = False

    async def send(self, frame: Frame) -> None:
        del frame
        self.num_sent += 1
        if self.is_lost:
            raise PeerLost("it is gone")


def make_members(num: int) -> list[Peer]:
    links: list[Link] = [NamedLink(f"node/{i:03}") for i in reversed(range(num))]  # type: ignore[misc]
    return [describe(Channel(link), Join(f"tcp://{link.peer}", (), "here", 0)) for link in links]


@pytest.mark.parametrize("num", [0, 1, 2, 3, 6, 2 * MOST_MEASURED + 1])
def test_every_pair_of_a_small_cluster_is_measured_from_both_ends(num: int) -> None:
    members = make_members(num)
    pairs = Counter(
        (member.node, peer.node)
        for member, found in zip(members, choose_peers(members), strict=True)
        for peer in found.peers
        if peer.is_measured
    )
    assert set(pairs.values()) <= {1}
    assert len(pairs) == num * (num - 1)


@pytest.mark.parametrize("num", [2, 5, 64])
def test_who_is_measured_knows_who_measures(num: int) -> None:
    members = make_members(num)
    told = {member.node: found.peers for member, found in zip(members, choose_peers(members), strict=True)}
    for name, peers in told.items():
        assert sum(peer.is_measured for peer in peers) <= 2 * MOST_MEASURED
        for peer in peers:
            assert peer.address == f"tcp://{peer.node}"
            [back] = [each for each in told[peer.node] if each.node == name]
            assert back.is_measured


async def test_nodes_are_introduced_when_another_joins() -> None:
    async with open_registry(measures_links=True) as registry:
        nodes = [Node("a"), Node("b")]
        async with joined(registry, *nodes):
            await until(lambda: all(node.peers for node in nodes))
            assert [[peer.node for peer in node.peers] for node in nodes] == [["b"], ["a"]]
            assert all(node.peers[0].is_measured for node in nodes)
            node = await soon(registry.find(lambda node: node.name == "a"))
            assert not node.channel.ended.is_set()


async def test_join_is_told_to_those_alone_whom_it_concerns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(introductions, "SETTLE_S", 0.0)
    links = [NamedLink(f"node/{i:03}") for i in range(100)]
    members = [(Channel(link), Join(f"tcp://{link.peer}", (), "here", 0)) for link in links]  # type: ignore[arg-type]
    listed = members[:99]
    introducer = Introducer(lambda: listed)

    async def tell() -> list[int]:
        others = asyncio.all_tasks()
        introducer.note_change()
        [telling] = asyncio.all_tasks() - others
        await soon(telling)
        return [link.num_sent for link in links]

    assert await tell() == [1] * 99 + [0]
    links[50].is_lost = True
    listed = members
    assert sum(await tell()) == 99 + 1 + 2 * MOST_MEASURED
    links[50].is_lost, listed = False, members[:]
    assert sum(await tell()) == 99 + 1 + 2 * MOST_MEASURED, "nothing is new"
    links[99].is_lost = True
    listed = members[:99]
    assert sum(await tell()) == 99 + 1 + 4 * MOST_MEASURED
    listed = members
    first = sum(await tell())
    links[99].is_lost = False
    assert sum(await tell()) == first + 1, "it did not hear of it before"
    await introducer.stop()


async def test_nodes_are_told_when_another_is_gone_whose_key_they_trust() -> None:
    async with open_registry(measures_links=True) as registry:
        nodes = [Node("a"), Node("b"), Node("c")]
        async with joined(registry, *nodes):
            await until(lambda: all(len(node.peers) == 2 for node in nodes))
            await nodes[2].kill()
            await until(lambda: [[peer.node for peer in node.peers] for node in nodes[:2]] == [["b"], ["a"]])


async def test_introducer_that_has_stopped_sends_nothing_more() -> None:
    introducer = Introducer(list)
    introducer.note_change()
    await introducer.stop()
    assert asyncio.all_tasks() == {asyncio.current_task()}

"""Tells the nodes of a head about each other, so that they measure their links."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from parallax_cluster.wire.profile import MOST_PEERS, Peer, Peers
from parallax_core.api import PeerLost
from parallax_core.api.node import Channel, run_in_turns
from parallax_core.wire.membership import Join

logger = logging.getLogger(__name__)

SETTLE_S = 0.5
"""Seconds to wait for more nodes before all are told."""
SEND_S = 5.0
"""Seconds that a node may take to read it."""
MOST_MEASURED = 8
"""The most neighbours on each side whose links a node measures."""

Member = tuple[Channel, Join]
"""A node that has joined."""


def choose_peers(members: Sequence[Peer]) -> list[Peers]:
    """Return what to tell each node: of up to 17 nodes, each measures its link to every other one.

    Of more, each measures those to its neighbours in the order of names; the first and the last are neighbours. Both
    ends measure a link, since one may reach the other and not be reached by it.
    """
    ring = sorted(range(len(members)), key=lambda i: members[i].node)
    num, found = len(ring), [list[Peer]() for _ in members]
    for place, i in enumerate(ring):
        for step in range(1, min(MOST_MEASURED, num // 2) + 1):
            j = ring[(place + step) % num]
            if 2 * step == num and place >= step:  # it is measured from the other end
                continue
            found[i].append(members[j])
            found[j].append(members[i])
    return [Peers(tuple(peers[:MOST_PEERS])) for peers in found]


class Introducer:
    """Sends nodes the nodes to measure, whenever these change. Belongs to one event loop."""

    def __init__(self, list_members: Callable[[], Sequence[Member]]) -> None:
        """Introduce the nodes that ``list_members`` returns."""
        self._list = list_members
        self._telling: asyncio.Task[None] | None = None
        self._is_due = False
        self._described: dict[Channel, Peer] = {}
        """The nodes that had joined when they were told last."""
        self._told: dict[Channel, Peers] = {}
        """What each of them knows."""

    def note_change(self) -> None:
        """Tell all nodes soon that one has joined, or is gone and no longer to be trusted."""
        self._is_due = True
        if self._telling is None or self._telling.done():
            self._telling = asyncio.create_task(self._tell())

    async def stop(self) -> None:
        """Stop sending introductions. Idempotent."""
        if self._telling is not None:
            self._telling.cancel()
            await asyncio.gather(self._telling, return_exceptions=True)

    async def _tell(self) -> None:
        while self._is_due:
            await asyncio.sleep(SETTLE_S)
            self._is_due = False
            before = self._described
            self._described = {member[0]: before.get(member[0]) or describe(*member) for member in self._list()}
            peers = dict(zip(self._described, choose_peers(list(self._described.values())), strict=True))
            news = [channel for channel, each in peers.items() if self._told.get(channel) != each]
            self._told = peers
            await run_in_turns(self._send(channel, peers[channel]) for channel in news)

    async def _send(self, channel: Channel, peers: Peers) -> None:
        try:
            async with asyncio.timeout(SEND_S):
                await channel.send(peers)
        except (PeerLost, TimeoutError):
            self._told.pop(channel, None)


def describe(channel: Channel, join: Join) -> Peer:
    """Return how a node that has joined is described to others."""
    return Peer(channel.peer, join.address, channel.key)

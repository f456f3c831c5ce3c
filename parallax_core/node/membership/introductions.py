"""Tells the nodes of a head about each other, so that they measure their links."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress

from parallax_core.base.errors import PeerLost
from parallax_core.node.channel import Channel
from parallax_core.wire.membership import Join
from parallax_core.wire.profile import MOST_PEERS, Peer, Peers

logger = logging.getLogger(__name__)

SETTLE_S = 0.5
"""Seconds to wait for more nodes before all are told."""
SEND_S = 5.0
"""Seconds that a node may take to read it."""
MOST_MEASURED = 8
"""The most links to other nodes that a node measures."""

Member = tuple[Channel, Join]
"""A node that has joined."""


def choose_peers(members: Sequence[Member]) -> list[Peers]:
    """Return what to tell each node: of up to 17 nodes, every pair measures its link once, at one end.

    Of more, each node measures those that follow it in the order of names; the last is followed by the first.
    """
    ring = sorted(range(len(members)), key=lambda i: members[i][0].peer)
    num, found = len(ring), [list[Peer]() for _ in members]
    for place, i in enumerate(ring):
        for step in range(1, min(MOST_MEASURED, num // 2) + 1):
            j = ring[(place + step) % num]
            if 2 * step == num and place >= step:  # it is measured from the other end
                continue
            found[i].append(_describe(members[j], is_measured=True))
            found[j].append(_describe(members[i], is_measured=False))
    return [Peers(tuple(peers[:MOST_PEERS])) for peers in found]


class Introducer:
    """Sends every node the nodes to measure, whenever one has joined. Belongs to one event loop."""

    def __init__(self, list_members: Callable[[], Sequence[Member]]) -> None:
        """Introduce the nodes that ``list_members`` returns."""
        self._list = list_members
        self._telling: asyncio.Task[None] | None = None
        self._is_due = False

    def note_join(self) -> None:
        """Tell all nodes soon."""
        self._is_due = True
        if self._telling is None or self._telling.done():
            self._telling = asyncio.create_task(self._tell())

    async def stop(self) -> None:
        """Tell nobody any more. Idempotent."""
        if self._telling is not None:
            self._telling.cancel()
            await asyncio.gather(self._telling, return_exceptions=True)

    async def _tell(self) -> None:
        while self._is_due:
            await asyncio.sleep(SETTLE_S)
            self._is_due = False
            members = self._list()
            peers = choose_peers(members)
            await asyncio.gather(*(_send(channel, each) for (channel, _), each in zip(members, peers, strict=True)))


async def _send(channel: Channel, peers: Peers) -> None:
    with suppress(PeerLost, TimeoutError):
        async with asyncio.timeout(SEND_S):
            await channel.send(peers)


def _describe(member: Member, *, is_measured: bool) -> Peer:
    channel, join = member
    return Peer(channel.peer, join.address, channel.key, is_measured)

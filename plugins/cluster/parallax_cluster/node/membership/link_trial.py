"""Asks nodes to try a link between them, and says which links of a pipeline failed."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

from parallax_cluster.wire.profile import LinkTried, Peer, TryLink
from parallax_core.api import PeerLost
from parallax_core.node.membership.joined_node import JoinedNode

ANSWER_S = 6.0
"""Seconds that a node may take to try a link: a little more than it takes at most."""


async def try_link(one: JoinedNode, other: JoinedNode) -> LinkTried | None:
    """Ask ``one`` to connect to ``other``; return its answer, or None if it is late or a node is gone.

    Somebody has to receive the messages of both meanwhile.
    """
    trial = one.trials.setdefault(other.name, asyncio.get_running_loop().create_future())
    ends = [asyncio.create_task(node.channel.ended.wait()) for node in (one, other)]
    waiting: list[asyncio.Future[Any]] = [trial, *ends]
    try:
        with suppress(PeerLost, TimeoutError):
            async with asyncio.timeout(ANSWER_S):
                expected = Peer(one.name, one.join.address, one.channel.key, is_measured=False)
                await other.channel.send(TryLink(expected))
                await one.channel.send(TryLink(Peer(other.name, other.join.address, other.channel.key)))
                await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        return trial.result() if trial.done() else None
    finally:
        for end in ends:
            end.cancel()

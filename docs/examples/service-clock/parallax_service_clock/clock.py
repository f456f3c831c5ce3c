"""Tells a head the time of each node, and compares it with the head's own."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial

from parallax_core.api import JoinedPeer, NodeService, PeerLost, ServiceContext, Takers
from parallax_service_clock.messages import ClockReading

EVERY_S = 60.0
MOST_S = 2.0
"""The most seconds between two clocks, with the way of the message."""

logger = logging.getLogger(__name__)


class ClockSender(NodeService):
    """Tells the head that a node has joined what its clock shows."""

    def __init__(self, now: Callable[[], float] = time.time, every_s: float = EVERY_S) -> None:
        """Read the clock ``now`` each ``every_s`` seconds."""
        self._now, self._every_s = now, every_s

    @asynccontextmanager
    async def joined(self, peer: JoinedPeer) -> AsyncIterator[Takers]:
        """Send while the node has joined, beside all else that it does."""
        sending = asyncio.create_task(self._send(peer))
        try:
            yield {}
        finally:
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)

    async def _send(self, peer: JoinedPeer) -> None:
        with contextlib.suppress(PeerLost):
            while True:
                await peer.channel.send(ClockReading(self._now()))
                await asyncio.sleep(self._every_s)


class ClockWatcher(NodeService):
    """Warns of nodes whose clocks are off."""

    def __init__(self, now: Callable[[], float] = time.time) -> None:
        """Compare with the clock ``now``."""
        self._now = now

    @asynccontextmanager
    async def joined(self, peer: JoinedPeer) -> AsyncIterator[Takers]:
        """Take the readings of a node."""
        yield {ClockReading: partial(self._compare, peer.name)}

    def _compare(self, node: str, reading: ClockReading) -> None:
        off_s = reading.time_s - self._now()
        if abs(off_s) <= MOST_S:
            logger.info("clock is right node=%s", node)
        else:
            logger.warning("clock is off by %+.1f s node=%s", off_s, node)


def make_sender(context: ServiceContext) -> NodeService:
    """Return the service of a node."""
    del context
    return ClockSender()


def make_watcher(context: ServiceContext) -> NodeService:
    """Return the service of a head."""
    del context
    return ClockWatcher()

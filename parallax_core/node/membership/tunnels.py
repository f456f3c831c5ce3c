"""Serves the clients and standbys of a head that come over links of their own."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from parallax_core.base.errors import PeerLost
from parallax_core.node.channel import Channel

logger = logging.getLogger(__name__)

ServeApi = Callable[[Channel], Awaitable[None]]
"""Answers the requests of a client that come over a link, until it ends."""


class Tunnels:
    """The links that are served. Belongs to one event loop."""

    def __init__(self) -> None:
        self._running: set[asyncio.Future[None]] = set()

    def open(self, channel: Channel, serve: ServeApi) -> None:
        """Have a link served, beside the others."""
        tunnel = asyncio.ensure_future(serve(channel))
        self._running.add(tunnel)
        tunnel.add_done_callback(self._note)

    async def stop(self) -> None:
        """End all. Idempotent."""
        for tunnel in self._running:
            tunnel.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)

    def _note(self, tunnel: asyncio.Future[None]) -> None:
        self._running.discard(tunnel)
        if not tunnel.cancelled() and (error := tunnel.exception()) is not None and not isinstance(error, PeerLost):
            logger.error("connection of a joined machine's client ended", exc_info=error)

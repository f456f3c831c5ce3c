"""Replaces a relayed link by a direct one, between two steps, once the nodes reach each other."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from parallax_core.api import ParallaxError, Transport
from parallax_core.api.node import Channel, open_channel

AGAIN_S = 10.0
"""Seconds between two attempts to reach a node directly."""
CONNECT_S = 5.0
"""Seconds to connect, and to be greeted."""

logger = logging.getLogger(__name__)


class LinkUpgrade:
    """Tries to reach the next stage directly, for as long as it is linked over a relay. Belongs to one event loop."""

    def __init__(self, transport: Transport, node: str, address: str, relayed: Channel) -> None:
        """Reach ``address`` as the node called ``node``, to replace the link of ``relayed``."""
        self._transport = transport
        self._node = node
        self._address = address
        self._relayed = relayed

    async def run(self, tell: Callable[[], Awaitable[None]]) -> None:
        """Try again and again until it succeeds, and call ``tell`` then.

        Raises:
            PeerLost: if the relayed link is lost meanwhile.
        """
        while True:
            await asyncio.sleep(AGAIN_S)
            try:
                async with asyncio.timeout(CONNECT_S):
                    direct = await self._connect()
            except (ParallaxError, TimeoutError) as error:
                logger.debug("still over a relay node=%s: %s", self._relayed.peer, error)
                continue
            await self._relayed.hand_over(direct)
            logger.info("linked directly now node=%s", self._relayed.peer)
            await tell()
            return

    async def _connect(self) -> Channel:
        """Return a direct link on which the other node expects the next messages.

        Raises:
            ParallaxError: if the node cannot be reached, or does not expect it.
        """
        link = await self._transport.connect(self._address, self._relayed.peer)
        return await open_channel(link, self._node, "direct", "worker")

"""A node's offer to relay for others of its cluster; its head tells it who may use it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from parallax_cluster.node.relay.limits import RelayLimits
from parallax_cluster.node.relay.server import RelayServer
from parallax_cluster.wire.profile import Peer
from parallax_cluster.wire.relay import OfferRelay, RelayUsers
from parallax_core.api import ParallaxError, PeerLost, Transport
from parallax_core.api.node import TrustedPeers, open_channel
from parallax_core.wire.membership import Refusal

GREETING_S = 10.0
"""Seconds that a head has to greet."""
AGAIN_S = 1.0
"""Seconds before a lost link to the head is made again, while the node is joined."""

logger = logging.getLogger(__name__)


class RelayOffer:
    """The relay of a node, for members named by its head. Belongs to one event loop."""

    def __init__(self, limits: RelayLimits) -> None:
        """Forward within ``limits``."""
        self._users: frozenset[str] = frozenset()
        self.server = RelayServer(limits, lambda node: node in self._users)

    @asynccontextmanager
    async def offered(self, transport: Transport, node: str, head: Peer, trusted: TrustedPeers) -> AsyncIterator[None]:
        """Offer the relay to ``head``, as the node called ``node``; ``trusted`` keeps the keys of its users."""
        offering = asyncio.create_task(self._keep_offered(transport, node, head, trusted))
        try:
            yield
        finally:
            offering.cancel()
            await asyncio.gather(offering, return_exceptions=True)

    async def offer(self, transport: Transport, node: str, head: Peer, trusted: TrustedPeers) -> None:
        """Offer the relay once, until the head is lost.

        Raises:
            PeerLost: once the head is lost.
            ParallaxError: if the address of the head is invalid, or the head refuses.
        """
        link = await transport.connect(head.address, head.node)
        try:
            async with asyncio.timeout(GREETING_S):
                channel = await open_channel(link, node, "offer", "head")
        except TimeoutError as error:
            raise PeerLost(f"node {head.node!r} did not greet within {GREETING_S:g} s") from error
        try:
            channel.admit()
            channel.learn([RelayUsers])
            await channel.send(OfferRelay(transport.address))
            logger.info("relays for the nodes of head=%s at address=%s", head.node, transport.address)
            while isinstance(message := await channel.receive(), RelayUsers):
                self._users = frozenset(user.node for user in message.users)
                trusted.trust("user of the relay", {user.node: user.key for user in message.users})
            if isinstance(message, Refusal):
                raise ParallaxError(message.message, message.hint)
            raise PeerLost(f"node {head.node!r} sent a relay a {type(message).__name__}")
        finally:
            await channel.leave()

    async def _keep_offered(self, transport: Transport, node: str, head: Peer, trusted: TrustedPeers) -> None:
        while True:
            try:
                await self.offer(transport, node, head, trusted)
            except ParallaxError as error:
                logger.debug("the relay is not offered: %s", error)
            await asyncio.sleep(AGAIN_S)

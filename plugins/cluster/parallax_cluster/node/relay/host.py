"""A node that only relays: it runs no stages, and needs no backend."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress

from parallax_cluster.node.relay.offer import RelayOffer
from parallax_cluster.wire.profile import Peer
from parallax_core.api import IncompatibleNode, ParallaxError, PeerLost, Transport
from parallax_core.api.node import TrustedPeers
from parallax_core.node.worker.incoming import IncomingLinks
from parallax_core.node.worker.rejoin import SeekHead

AGAIN_S = (0.5, 1.0, 2.0)
"""Seconds before each attempt to reach the head again; the last value repeats."""

logger = logging.getLogger(__name__)


class RelayHost:
    """Offers a relay to a head for as long as it runs."""

    def __init__(self, transport: Transport, node: str, offer: RelayOffer) -> None:
        """Relay as the node called ``node``; ``transport`` has started and listens."""
        self._transport = transport
        self._node = node
        self._offer = offer
        self._trusted = TrustedPeers(transport)
        self._incoming = IncomingLinks(transport, node, offer.server.purposes)

    async def serve(self, head: Peer, seek: SeekHead | None = None) -> None:
        """Relay for the nodes of ``head``, which ``seek`` finds again if it is lost, until cancelled.

        Raises:
            IncompatibleNode: if the head runs a version of Parallax with which this node cannot work.
            ParallaxError: if the address of the head is invalid, or it refuses.
        """
        addresses, num_failures = [head.address], 0
        async with self._incoming.accepting():
            while True:
                place = Peer(head.node, addresses[num_failures % len(addresses)])
                wait_s = AGAIN_S[min(num_failures, len(AGAIN_S) - 1)]
                try:
                    await self._offer.offer(self._transport, self._node, place, self._trusted)
                except IncompatibleNode:
                    raise
                except PeerLost as error:
                    logger.warning("no head at %s, trying again in %g s: %s", place.address, wait_s, error.message)
                num_failures += 1
                await asyncio.sleep(wait_s)
                if seek is not None:
                    with suppress(ParallaxError):
                        addresses = list(dict.fromkeys([head.address, *await seek(wait_s)]))

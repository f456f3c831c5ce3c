"""The service by which a node links to others over relays, and is one itself."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial

from parallax_cluster.node.relay.offer import RelayOffer
from parallax_cluster.node.relay.paths import RelayPaths
from parallax_cluster.node.relay.upgrade import LinkUpgrade
from parallax_cluster.wire.profile import Peer
from parallax_cluster.wire.relay import Relays, Relinked
from parallax_core.api import JoinedPeer, LinkPurpose, PeerLost, Takers
from parallax_core.api.node import Channel, TrustedPeers
from parallax_core.node.worker.node_services import WorkerService
from parallax_core.node.worker.peers import PeerLinks


class RelayService(WorkerService):
    """Uses the relays that the head names, and replaces a relayed link by a direct one when that becomes possible."""

    def __init__(self, paths: RelayPaths, node: str, trusted: TrustedPeers, offer: RelayOffer | None = None) -> None:
        """Serve the node called ``node``; with ``offer``, the node is a relay for others."""
        self._paths = paths
        self._node = node
        self._trusted = trusted
        self._offer = offer
        self._before: Channel | None = None
        """The link to the stage before, which may make a direct one in its place, or None."""

    @property
    def purposes(self) -> Mapping[str, LinkPurpose]:
        """How to serve links in place of relayed ones, and those of the users of this relay."""
        direct = LinkPurpose(serve=_leave_it, accept=self._succeed, admits=True)
        return {"direct": direct, **(self._offer.server.purposes if self._offer is not None else {})}

    @asynccontextmanager
    async def joined(self, peer: JoinedPeer) -> AsyncIterator[Takers]:
        """Use the relays that the head names, and offer it the one of this node."""
        head = Peer(peer.name, peer.address)
        async with self._paths.joined(head), AsyncExitStack() as stack:
            if self._offer is not None:
                offered = self._offer.offered(self._paths.transport, self._node, head, self._trusted)
                await stack.enter_async_context(offered)
            yield {Relays: partial(self._paths.meet, trusted=self._trusted)}

    @asynccontextmanager
    async def linked(self, head: Channel, links: PeerLinks) -> AsyncIterator[None]:
        """Replace relayed links by direct ones when that becomes possible, on either side."""
        tasks = []
        if links.relay and links.after is not None:
            upgrade = LinkUpgrade(self._paths.transport, self._node, links.address, links.after)
            tasks.append(asyncio.create_task(upgrade.run(partial(head.send, Relinked()))))
        self._before = links.before
        try:
            yield
        finally:
            self._before = None
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _succeed(self, direct: Channel) -> None:
        if self._before is None or self._before.peer != direct.peer:
            raise PeerLost(f"node {direct.peer!r} has no link that another one could replace")
        self._before.succeed_by(direct)


async def _leave_it(_: Channel) -> None:
    """Leave a link to the one that it replaces."""

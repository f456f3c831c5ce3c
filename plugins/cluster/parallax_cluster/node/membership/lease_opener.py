"""Opens leases on nodes so that several pipelines share their layers."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from parallax_cluster.wire.further import OpenLease
from parallax_core.api import NOTHING, JoinedPeer, NodeService, PeerLost, Takers
from parallax_core.node.membership.joined_node import JoinedNode
from parallax_core.node.membership.registry import NodeRegistry


class LeaseOpener(NodeService):
    """Asks nodes for leases, each time that they join. A lease joins by itself, and stays until its node ends."""

    def __init__(self, registry: NodeRegistry) -> None:
        """Ask the nodes that join ``registry``."""
        self._registry = registry
        self._wanted: Mapping[str, int] = {}
        """By node: the number up to which it is to open leases."""
        self._sending: set[asyncio.Task[None]] = set()

    def want(self, numbers: Mapping[str, int]) -> None:
        """Set the number of leases to open on each node, by name, now or when it joins."""
        self._wanted = self._registry.sharing = numbers
        for node in self._registry.joined:
            self._update(node)
        for node in self._registry.waiting:
            if node.name in numbers:
                self._registry.free(node)

    @asynccontextmanager
    async def joined(self, peer: JoinedPeer) -> AsyncIterator[Takers]:
        """Ask a node for the leases that are wanted of it."""
        assert isinstance(peer, JoinedNode), "a registry has no others"
        self._update(peer)
        yield NOTHING

    async def close(self) -> None:
        """Ask no more. Idempotent."""
        for task in self._sending:
            task.cancel()
        await asyncio.gather(*self._sending, return_exceptions=True)

    def _update(self, node: JoinedNode) -> None:
        for number in range(node.num_leases + 1, self._wanted.get(node.name, 0) + 1):
            node.num_leases = number
            self._sending.add(sending := asyncio.create_task(_send(node, OpenLease(number))))
            sending.add_done_callback(self._sending.discard)


async def _send(node: JoinedNode, message: OpenLease) -> None:
    with contextlib.suppress(PeerLost):  # it has released all, and is asked again when it joins again
        await node.channel.send(message)

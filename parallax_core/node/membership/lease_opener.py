"""Opens leases on nodes so that several pipelines share their layers."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Mapping

from parallax_core.base.errors import PeerLost
from parallax_core.base.ids import Epoch
from parallax_core.node.executor.base import LEASE
from parallax_core.node.membership.joined_node import JoinedNode
from parallax_core.wire.further import OpenLease
from parallax_core.wire.membership import Release


class LeaseOpener:
    """Asks nodes for leases, each time that they join. A lease joins by itself, and stays until its node ends."""

    def __init__(self) -> None:
        self.wanted: Mapping[str, int] = {}
        """By node: the number up to which it is to open leases."""
        self._sending: set[asyncio.Task[None]] = set()

    def want(self, numbers: Mapping[str, int], joined: Iterable[JoinedNode], waiting: Iterable[JoinedNode]) -> None:
        """Set the number of leases to open on each joined node, by name; waiting nodes release their stage."""
        self.wanted = numbers
        for node in joined:
            self.update(node)
        for node in waiting:
            if node.name in numbers:
                self.free(node)

    def update(self, node: JoinedNode) -> None:
        """Ask a joined node to open its wanted leases that are not open yet."""
        for number in range(node.num_leases + 1, self.wanted.get(node.name, 0) + 1):
            node.num_leases = number
            self._send(node, OpenLease(number))

    def free(self, node: JoinedNode) -> None:
        """Ask a node to release its stage for the memory of its leases, but keep the layers they share."""
        node.loaded = None
        self._send(node, Release(LEASE, Epoch(0), keeps_layers=True))

    async def stop(self) -> None:
        """Ask no more. Idempotent."""
        for task in self._sending:
            task.cancel()
        await asyncio.gather(*self._sending, return_exceptions=True)

    def _send(self, node: JoinedNode, message: OpenLease | Release) -> None:
        sending = asyncio.create_task(_send(node, message))
        self._sending.add(sending)
        sending.add_done_callback(self._sending.discard)


async def _send(node: JoinedNode, message: OpenLease | Release) -> None:
    with contextlib.suppress(PeerLost):  # it has released all, and is asked again when it joins again
        await node.channel.send(message)

"""Has the nodes of a head open leases, through which further pipelines use the layers that they hold."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Mapping

from parallax_core.base.errors import PeerLost
from parallax_core.base.ids import Epoch
from parallax_core.node.executor.base import LEASE
from parallax_core.node.membership.joined_node import JoinedNode
from parallax_core.wire.membership import OpenLease, Release


class LeaseOpener:
    """Asks nodes for leases, each time that they join. A lease joins by itself, and stays until its node ends."""

    def __init__(self) -> None:
        self.wanted: Mapping[str, int] = {}
        """By node: the number up to which it is to open leases."""
        self._sending: set[asyncio.Task[None]] = set()

    def want(self, numbers: Mapping[str, int], joined: Iterable[JoinedNode], waiting: Iterable[JoinedNode]) -> None:
        """Have nodes that have joined open leases up to a number each, by name, and those that wait release a stage."""
        self.wanted = numbers
        for node in joined:
            self.update(node)
        for node in waiting:
            if node.name in numbers:
                self.free(node)

    def update(self, node: JoinedNode) -> None:
        """Have a node that has joined open the leases that are wanted of it and are not open yet."""
        for number in range(node.num_leases + 1, self.wanted.get(node.name, 0) + 1):
            node.num_leases = number
            self._send(node, OpenLease(number))

    def free(self, node: JoinedNode) -> None:
        """Have a node release its stage, whose memory leases of it need, but not the layers that these share."""
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

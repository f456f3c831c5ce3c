"""Runs the further nodes of a machine, each a process of its own, as the head asks."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

from parallax_cluster.node.coordinator.own_node import keep_worker
from parallax_cluster.wire.further import EndNode, StartNode
from parallax_core.api import JoinedPeer, NodeService, Takers, further_node
from parallax_core.node.membership.supervisor import WorkerSupervisor

logger = logging.getLogger(__name__)

MOST_FURTHER = 16
"""The most further nodes of one node: a head asks for one per model."""


class FurtherNodes(NodeService):
    """The further nodes that a node has started, by their numbers. Belongs to one event loop.

    A process that ends is started again, until the head has it ended or this node leaves.
    """

    def __init__(self, node: str, command: Callable[[str], Sequence[str]] | None = None) -> None:
        """Start the further nodes of ``node`` with ``command``, which returns the command line for a name.

        Without ``command``, none can be started.
        """
        self._node = node
        self._supervisor = WorkerSupervisor(command) if command is not None else None
        self._keeping: dict[int, asyncio.Task[None]] = {}
        self._ending: set[asyncio.Task[None]] = set()

    @property
    def is_needed(self) -> bool:
        """Whether there are any."""
        return bool(self._keeping)

    @asynccontextmanager
    async def joined(self, peer: JoinedPeer) -> AsyncIterator[Takers]:
        """Start and end nodes as the head asks, and end all once it is lost."""
        del peer
        try:
            yield {StartNode: self.start, EndNode: self.end}
        finally:
            await self.close()

    def start(self, message: StartNode) -> None:
        """Start a node, unless it runs."""
        if self._supervisor is None or message.number in self._keeping:
            return
        if len(self._keeping) >= MOST_FURTHER:
            logger.warning("no further node is started: there are %d", MOST_FURTHER)
            return
        name = further_node(self._node, message.number)
        keeping = asyncio.create_task(keep_worker(self._supervisor, name))
        self._keeping[message.number] = keeping

    def end(self, message: EndNode) -> None:
        """End a node, and its process with it."""
        if (keeping := self._keeping.pop(message.number, None)) is not None:
            ending = asyncio.create_task(self._end(message.number, keeping))
            self._ending.add(ending)
            ending.add_done_callback(self._ending.discard)

    async def leave(self) -> None:
        """Ask all nodes to leave, and return once their processes have ended; they are not started again."""
        keeping, self._keeping = self._keeping, {}
        await asyncio.gather(*(self._leave(number, task) for number, task in keeping.items()))

    async def close(self) -> None:
        """End all nodes. Idempotent."""
        for number in list(self._keeping):
            self.end(EndNode(number))
        await asyncio.gather(*self._ending)

    async def _leave(self, number: int, keeping: asyncio.Task[None]) -> None:
        assert self._supervisor is not None, "it has started a node"
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)
        name = further_node(self._node, number)
        try:
            if (pid := self._supervisor.find_pid(name)) is not None:
                os.kill(pid, signal.SIGTERM)
                await self._supervisor.wait_end(name)
        finally:
            await self._supervisor.end(name)

    async def _end(self, number: int, keeping: asyncio.Task[None]) -> None:
        assert self._supervisor is not None, "it has started a node"
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)
        await self._supervisor.end(further_node(self._node, number))

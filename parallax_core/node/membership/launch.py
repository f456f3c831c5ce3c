"""Starts a worker process and waits until it has joined."""

from __future__ import annotations

import asyncio

from parallax_core.base.errors import BackendFailed
from parallax_core.node.channel import Channel
from parallax_core.node.membership.joined_node import JoinedNode
from parallax_core.node.membership.node_matcher import Fit
from parallax_core.node.membership.registry import NodeRegistry
from parallax_core.node.membership.supervisor import WorkerSupervisor

JOIN_S = 120.0
"""Seconds a worker process may take to join."""
LOG_HINT = "its log, above, says why"


class WorkerEnded(BackendFailed):
    """A worker process has ended, or has not joined in time."""


async def find_worker(registry: NodeRegistry, supervisor: WorkerSupervisor, node: str, fit: Fit) -> JoinedNode:
    """Start the process of ``node``, after killing the one it has, and return the node once it has joined.

    Raises:
        BackendFailed: if the process cannot be started.
        WorkerEnded: if it ends, or does not join in time.
    """
    registry.forget(node)
    await supervisor.restart(node)
    finding = asyncio.create_task(registry.find(fit, node))
    ending = asyncio.create_task(supervisor.wait_end(node))
    try:
        await asyncio.wait([finding, ending], timeout=JOIN_S, return_when=asyncio.FIRST_COMPLETED)
        if finding.done():
            return finding.result()
        reason = ending.result() if ending.done() else f"its process has not joined within {JOIN_S:g} s"
        raise WorkerEnded(reason, LOG_HINT)
    finally:
        finding.cancel()
        ending.cancel()


class WorkerProcess:
    """The worker process of a replica, which may be started again; a `ReplicaNode`."""

    def __init__(self, name: str, registry: NodeRegistry, supervisor: WorkerSupervisor) -> None:
        """``supervisor`` starts the process of the node called ``name``, which joins ``registry``."""
        self.name = name
        self._registry = registry
        self._supervisor = supervisor
        self._node: JoinedNode | None = None

    @property
    def host(self) -> str:
        """The machine of the process; empty before it has joined."""
        return self._node.join.host if self._node is not None else ""

    @property
    def pid(self) -> int:
        """The process; 0 before it has joined."""
        return self._node.join.pid if self._node is not None else 0

    async def start(self) -> Channel:
        """Start a new process, and return the link to it once it has joined; see `ReplicaNode.start`."""
        await self._leave()
        self._node = await find_worker(self._registry, self._supervisor, self.name, self._fit)
        return self._node.channel

    async def explain(self) -> str:
        """Return why the process has ended; empty if it still runs half a second later."""
        return await self._supervisor.explain(self.name) or ""

    async def kill(self) -> None:
        """Kill the process with its child processes, and end the link. Idempotent."""
        await self._supervisor.kill(self.name)
        await self._leave()

    async def end(self) -> None:
        """Ask the process to end, kill it if it does not, and end the link. Idempotent."""
        await self._supervisor.end(self.name)
        await self._leave()

    def _fit(self, node: JoinedNode) -> int:
        return int(node.name == self.name)

    async def _leave(self) -> None:
        node, self._node = self._node, None
        if node is not None:
            await node.channel.leave()

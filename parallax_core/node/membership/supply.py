"""Finds a node for a stage."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from math import inf

from parallax_core.base.ids import holder_of, is_lease
from parallax_core.node.membership.assignment import StageAssignment
from parallax_core.node.membership.joined_node import JoinedNode
from parallax_core.node.membership.launch import find_worker
from parallax_core.node.membership.loading import NodeRefused
from parallax_core.node.membership.registry import NodeRegistry
from parallax_core.node.membership.spares import SparePool
from parallax_core.node.membership.supervisor import WorkerSupervisor


@dataclass(frozen=True, slots=True)
class NodeSupply:
    """Where the nodes of a pipeline come from."""

    registry: NodeRegistry
    supervisor: WorkerSupervisor | None = None
    """Starts the nodes as worker processes; None: an operator starts them."""
    spares: SparePool | None = None
    """The spare nodes; None without spares."""
    patience_s: float = inf
    """Seconds to wait for a node that an assignment names and that has joined, but is not free."""

    async def find(self, assignment: StageAssignment) -> JoinedNode:
        """Return a node for a stage: a spare one, else a new process, or the next suitable node that joins.

        Raises:
            BackendFailed: if the process cannot be started.
            WorkerEnded: if it ends, or does not join in time.
            NodeRefused: if the node has joined, and is not free in time.
        """
        if (node := self._take_spare(assignment)) is not None:
            if self.supervisor is not None:
                await self.supervisor.kill(assignment.node)
            return node
        if self.supervisor is None:
            return await self._wait_for(assignment)
        return await find_worker(self.registry, self.supervisor, assignment.node, assignment.fit)

    async def find_successor(self, assignment: StageAssignment) -> JoinedNode | None:
        """Return a node for a stage whose node still runs: a spare one, or the next suitable node that joins.

        None: there is no spare, and this process starts the nodes; the memory may not suffice for two of them.
        """
        if (node := self._take_spare(assignment)) is not None:
            return node
        return await self.registry.find(assignment.fit, assignment.node) if self.supervisor is None else None

    async def _wait_for(self, assignment: StageAssignment) -> JoinedNode:
        """Return the next suitable node; one that is gone is waited for until another is assigned."""
        while True:
            try:
                async with asyncio.timeout(self.patience_s if assignment.node else None):
                    return await self.registry.find(assignment.fit, assignment.node)
            except TimeoutError:
                if self.registry.has(holder_of(assignment.node)):
                    reason = (
                        f"stage {assignment.stage} waited {self.patience_s:g} s for node {assignment.node!r} in vain"
                    )
                    raise NodeRefused(assignment.node, reason, lacks_leases=is_lease(assignment.node)) from None

    def _take_spare(self, assignment: StageAssignment) -> JoinedNode | None:
        return self.spares.take(assignment) if self.spares is not None else None

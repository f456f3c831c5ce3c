"""Finds a node for a stage."""

from __future__ import annotations

from dataclasses import dataclass

from parallax_core.node.membership.assignment import StageAssignment
from parallax_core.node.membership.joined_node import JoinedNode
from parallax_core.node.membership.launch import find_worker
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
    """None: there are none."""

    async def find(self, assignment: StageAssignment) -> JoinedNode:
        """Return a node for a stage: a spare one, else a new process, or the next suitable node that joins.

        Raises:
            BackendFailed: if the process cannot be started.
            WorkerEnded: if it ends, or does not join in time.
        """
        if (node := self._take_spare(assignment)) is not None:
            if self.supervisor is not None:
                await self.supervisor.kill(assignment.node)
            return node
        if self.supervisor is None:
            return await self.registry.find(assignment.fit, assignment.node)
        return await find_worker(self.registry, self.supervisor, assignment.node, assignment.fit)

    async def find_successor(self, assignment: StageAssignment) -> JoinedNode | None:
        """Return a node for a stage whose node still runs: a spare one, or the next suitable node that joins.

        None: there is no spare, and this process starts the nodes; the memory may not suffice for two of them.
        """
        if (node := self._take_spare(assignment)) is not None:
            return node
        return await self.registry.find(assignment.fit, assignment.node) if self.supervisor is None else None

    def _take_spare(self, assignment: StageAssignment) -> JoinedNode | None:
        return self.spares.take(assignment) if self.spares is not None else None

"""Starts a worker process and waits until it has joined."""

from __future__ import annotations

import asyncio

from parallax_core.base.errors import BackendFailed
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

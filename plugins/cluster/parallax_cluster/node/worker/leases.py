"""Runs the leases of a node, by which further pipelines use its layers, as the head asks."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Protocol

from parallax_cluster.wire.further import OpenLease
from parallax_core.api import JoinedPeer, NodeService, ParallaxError, StageLost, Takers, lease_node

logger = logging.getLogger(__name__)

MOST_LEASES = 32
"""The most leases of a node besides the first, which is the node itself."""


class JoinedLease(Protocol):
    """A lease, which joins the head by itself."""

    @property
    def is_needed(self) -> bool:
        """Whether a pipeline uses it."""

    def leave(self) -> None:
        """Ask the head to replace it; `run` returns once the head has released it. Idempotent."""

    async def run(self) -> None:
        """Join the head, again whenever it is lost, and serve it.

        Raises:
            StageLost: if the state of the stage is unknown, and with it that of the process.
            ParallaxError: if it cannot listen.
        """


class NodeLeases(NodeService):
    """The leases of a node by their numbers, from 1, which end when it loses its head. Belongs to one event loop."""

    def __init__(self, node: str, make: Callable[[str], JoinedLease] | None = None) -> None:
        """Open the leases of ``node`` with ``make``, by their names; without it, open no lease."""
        self._node = node
        self._make = make
        self._leases: dict[str, JoinedLease] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._loss: StageLost | None = None
        self._lost = asyncio.Event()

    @property
    def is_needed(self) -> bool:
        """Whether pipelines use any."""
        return any(lease.is_needed for lease in self._leases.values())

    @asynccontextmanager
    async def joined(self, peer: JoinedPeer) -> AsyncIterator[Takers]:
        """Open leases as the head asks, and end all once it is lost."""
        del peer
        try:
            yield {OpenLease: self.open}
        finally:
            await self.close()

    def open(self, message: OpenLease) -> None:
        """Open a lease, unless it is open."""
        name = lease_node(self._node, message.number)
        if self._make is None or name in self._tasks:
            return
        if len(self._tasks) >= MOST_LEASES:
            logger.warning("no further lease is opened: there are %d", MOST_LEASES)
            return
        lease = self._leases[name] = self._make(name)
        self._tasks[name] = asyncio.create_task(self._run(name, lease))

    async def leave(self) -> None:
        """Ask the head to replace all leases, and return once they have ended."""
        for lease in self._leases.values():
            lease.leave()
        await asyncio.gather(*self._tasks.values())

    async def close(self) -> None:
        """End all leases. Idempotent."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def run(self) -> None:
        """Wait until the stage of a lease is lost.

        Raises:
            StageLost: always; the process should end, since the leases share its device and its memory.
        """
        await self._lost.wait()
        assert self._loss is not None, "it was noted"
        raise self._loss

    async def _run(self, name: str, lease: JoinedLease) -> None:
        try:
            await lease.run()
        except StageLost as error:
            self._loss = error
            self._lost.set()
        except ParallaxError as error:
            logger.warning("lease has ended lease=%s: %s", name, error.message)
        finally:
            del self._leases[name], self._tasks[name]

"""Serves the head through a lease: a session beside that of the node, on shared layers."""

from __future__ import annotations

import msgspec

from parallax_core.node.worker.node_services import NodeServices
from parallax_core.node.worker.rejoin import HeadPlace, serve_again
from parallax_core.node.worker.session import WorkerSession
from parallax_core.node.worker.shared_layers import SharedLayers
from parallax_core.wire.membership import Join


class LeaseSession:
    """A lease of a node; see `JoinedLease`."""

    def __init__(self, services: NodeServices, layers: SharedLayers, place: HeadPlace, join: Join) -> None:
        """Serve the head at ``place``, under the name there.

        Args:
            services: those of the lease, whose transport is not started.
            layers: of the node.
            place: where the head is.
            join: that of the node.
        """
        self._transport = services.paths.transport
        self._place = place
        self._join = join
        self._session = WorkerSession(services, place.node, layers)

    @property
    def is_needed(self) -> bool:
        """Whether a pipeline uses it."""
        return self._session.is_needed

    def leave(self) -> None:
        """Ask the head to replace it. Idempotent."""
        self._session.leave()

    async def run(self) -> None:
        """Join the head, again whenever it is lost, and serve it; see `JoinedLease.run`. The node keeps its layers."""
        await self._transport.start()
        try:
            join = msgspec.structs.replace(self._join, address=self._transport.address, model="", start=0, stop=0)
            await serve_again(self._session, self._place, join)
        finally:
            await self._session.close(keeps_layers=True)
            await self._transport.stop()

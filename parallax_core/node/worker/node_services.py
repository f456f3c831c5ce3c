"""The services of a node, as its session uses them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

from parallax_core.base.errors import StageLost
from parallax_core.contracts.node_service import NodeService
from parallax_core.contracts.transport import Transport
from parallax_core.node.channel import Channel
from parallax_core.node.paths import Paths
from parallax_core.node.services import Services
from parallax_core.node.trusted_peers import TrustedPeers
from parallax_core.node.worker.peers import PeerLinks


@dataclass(frozen=True, slots=True)
class HeadPeer:
    """A head that a node has joined."""

    name: str
    address: str
    """Where the node has joined it."""
    channel: Channel


class WorkerService(NodeService):
    """A service that also takes part in how a node finds its head and its neighbours, and loads stages."""

    def linked(self, head: Channel, links: PeerLinks) -> AbstractAsyncContextManager[None]:
        """Return a context for as long as a stage has these links."""
        del head, links
        return nullcontext()

    async def pause(self) -> None:
        """Leave the device alone until `resume`: a stage is about to be loaded."""

    def resume(self) -> None:
        """Use the device again: there is no stage any more."""

    def note_unreached(self, node: str) -> None:
        """Note that the node of the next stage was not reached."""

    @property
    def heads(self) -> Sequence[str]:
        """Further addresses at which to look for the head, such as those of standbys."""
        return ()

    def choose_head(self, address: str) -> None:
        """Prepare to join the head at ``address`` next."""


class NodeServices(Services):
    """All services of a node, and what they share with its session. Belongs to one event loop."""

    fatal = (StageLost,)

    def __init__(self, transport: Transport) -> None:
        """Begin without services; ``transport`` has started and listens."""
        super().__init__()
        self.paths = Paths(transport)
        """Makes links to other nodes; a service may put another in its place when it is added."""
        self.trusted = TrustedPeers(transport)
        """Keeps the keys of other nodes."""

    async def run_beside(self, serving: Coroutine[Any, Any, None]) -> None:
        """Run all services, and ``serving``, until either ends, and end the other.

        Raises:
            StageLost: if a service has lost what it runs for the head.
            Exception: whatever ``serving`` raises.
        """
        tasks = [asyncio.create_task(serving), asyncio.create_task(self.run())]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        (tasks[1] if tasks[1] in done else tasks[0]).result()

    @property
    def are_needed(self) -> bool:
        """Whether others rely on any."""
        return any(service.is_needed for service in self)

    @property
    def heads(self) -> list[str]:
        """Further addresses at which to look for the head."""
        return [address for service in self._workers for address in service.heads]

    @property
    def _workers(self) -> list[WorkerService]:
        return [service for service in self if isinstance(service, WorkerService)]

    @asynccontextmanager
    async def linked(self, head: Channel, links: PeerLinks) -> AsyncIterator[None]:
        """Tell services of the links of a stage, for as long as it has them."""
        async with AsyncExitStack() as stack:
            for service in self._workers:
                await stack.enter_async_context(service.linked(head, links))
            yield

    async def pause(self) -> None:
        """Tell services that a stage is about to be loaded."""
        for service in self._workers:
            await service.pause()

    def resume(self) -> None:
        """Tell services that there is no stage any more."""
        for service in self._workers:
            service.resume()

    def note_unreached(self, node: str) -> None:
        """Tell services that the node of the next stage was not reached."""
        for service in self._workers:
            service.note_unreached(node)

    def choose_head(self, address: str) -> None:
        """Tell services which head is joined next."""
        for service in self._workers:
            service.choose_head(address)

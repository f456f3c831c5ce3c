"""The services of a node, as its session uses them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, nullcontext
from dataclasses import dataclass

from parallax_core.base.errors import ParallaxError, StageLost
from parallax_core.base.taskgroup import FailFastGroup
from parallax_core.contracts.node_service import LinkPurpose, NodeService
from parallax_core.contracts.transport import Transport
from parallax_core.node.channel import Channel
from parallax_core.node.paths import Paths
from parallax_core.node.trusted_peers import TrustedPeers
from parallax_core.node.worker.peers import PeerLinks

logger = logging.getLogger(__name__)


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


class NodeServices:
    """All services of a node, and what they share with its session. Belongs to one event loop."""

    def __init__(self, transport: Transport, services: Sequence[NodeService] = ()) -> None:
        """Begin with ``services``; ``transport`` has started and listens."""
        self.paths = Paths(transport)
        """Makes links to other nodes; a service may put another in its place when it is added."""
        self.trusted = TrustedPeers(transport)
        """Keeps the keys of other nodes."""
        self._services = list(services)

    @property
    def purposes(self) -> Mapping[str, LinkPurpose]:
        """How to serve links, by purpose."""
        return {name: purpose for service in self._services for name, purpose in service.purposes.items()}

    @property
    def are_needed(self) -> bool:
        """Whether others rely on any."""
        return any(service.is_needed for service in self._services)

    @property
    def heads(self) -> list[str]:
        """Further addresses at which to look for the head."""
        return [address for service in self._workers for address in service.heads]

    @property
    def _workers(self) -> list[WorkerService]:
        return [service for service in self._services if isinstance(service, WorkerService)]

    def add(self, service: NodeService) -> None:
        """Add a service.

        Raises:
            ParallaxError: if another one serves links of one of its purposes.
        """
        if taken := self.purposes.keys() & service.purposes.keys():
            raise ParallaxError(f"links for {min(taken)!r} are served by two node services")
        self._services.append(service)

    @asynccontextmanager
    async def joined(self, head: HeadPeer) -> AsyncIterator[None]:
        """Give services their messages, for as long as the node has joined ``head``."""
        async with AsyncExitStack() as stack:
            for service in self._services:
                takers = await stack.enter_async_context(service.joined(head))
                for kind, take in takers.items():
                    head.channel.divert(kind, take)
            yield

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

    async def run(self) -> None:
        """Run all services until one fails.

        Raises:
            StageLost: if the process of the node has to end.
        """
        try:
            async with FailFastGroup() as group:
                group.start(asyncio.Event().wait())
                for service in self._services:
                    group.start(_run(service))
        finally:
            for service in self._services:
                await service.close()

    def __iter__(self) -> Iterator[NodeService]:
        return iter(self._services)


async def _run(service: NodeService) -> None:
    try:
        await service.run()
    except StageLost:
        raise
    except Exception:  # a node without this service serves all the same
        logger.exception("service %s has failed", type(service).__name__)

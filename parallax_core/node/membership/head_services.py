"""The services of a head, as its registry uses them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TypeVar

from parallax_core.base.errors import ParallaxError
from parallax_core.contracts.node_service import LinkPurpose, NodeService
from parallax_core.node.membership.joined_node import JoinedNode

S = TypeVar("S", bound=NodeService)

logger = logging.getLogger(__name__)


class HeadServices:
    """All services of a head. Belongs to one event loop."""

    def __init__(self, purposes: dict[str, LinkPurpose]) -> None:
        """Add to ``purposes`` how the services serve links."""
        self._purposes = purposes
        self._services: list[NodeService] = []
        self._running: list[asyncio.Task[None]] = []

    def add(self, service: NodeService) -> None:
        """Add a service, before nodes join.

        Raises:
            ParallaxError: if another one serves links of one of its purposes.
        """
        if taken := self._purposes.keys() & service.purposes.keys():
            raise ParallaxError(f"links for {min(taken)!r} are served by two node services")
        self._purposes.update(service.purposes)
        self._services.append(service)

    def find(self, kind: type[S]) -> S:
        """Return the service of a type.

        Raises:
            ParallaxError: if there is no such service.
        """
        for service in self._services:
            if isinstance(service, kind):
                return service
        raise ParallaxError(f"this server has no {kind.__name__}", "install the plugin that offers it")

    def start(self) -> None:
        """Run all services."""
        self._running = [asyncio.create_task(_run(service)) for service in self._services]

    async def stop(self) -> None:
        """End all services. Idempotent."""
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)
        for service in self._services:
            await service.close()

    @asynccontextmanager
    async def joined(self, node: JoinedNode) -> AsyncIterator[None]:
        """Give services the messages of a node, for as long as its link lasts."""
        async with AsyncExitStack() as stack:
            for service in self._services:
                for kind, take in (await stack.enter_async_context(service.joined(node))).items():
                    node.channel.divert(kind, take)
            yield


async def _run(service: NodeService) -> None:
    try:
        await service.run()
    except Exception:  # a head without this service serves all the same
        logger.exception("service %s has failed", type(service).__name__)

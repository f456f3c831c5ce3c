"""The services of a node or of a head: the messages that they take, and how they run."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Any, ClassVar, Protocol, TypeVar

from parallax_core.base.errors import ParallaxError, PeerLost
from parallax_core.base.taskgroup import FailFastGroup, wait_for_ever
from parallax_core.contracts.node_service import JoinedPeer, LinkPurpose, NodeService
from parallax_core.contracts.service_message import ServiceMessage
from parallax_core.node.channel import Channel

S = TypeVar("S", bound=NodeService)

logger = logging.getLogger(__name__)

FAILED = "service %s has failed"


class Peer(JoinedPeer, Protocol):
    """A peer, with its channel as core has it."""

    @property
    def channel(self) -> Channel:
        """The link to it."""


class Services:
    """All services of a node or of a head. A failure of one ends no other."""

    fatal: ClassVar[tuple[type[Exception], ...]] = ()
    """The errors that end all services nevertheless."""

    def __init__(self, purposes: dict[str, LinkPurpose] | None = None) -> None:
        """Add to ``purposes`` how the services serve links."""
        self.purposes = {} if purposes is None else purposes
        """How to serve links, by purpose."""
        self._services: list[NodeService] = []
        self._running: asyncio.Task[None] | None = None

    def __iter__(self) -> Iterator[NodeService]:
        return iter(self._services)

    def add(self, service: NodeService) -> None:
        """Add a service, before any peer joins.

        Raises:
            ParallaxError: if another one serves links of one of its purposes.
        """
        if taken := self.purposes.keys() & service.purposes.keys():
            raise ParallaxError(f"links for {min(taken)!r} are served by two node services")
        self.purposes.update(service.purposes)
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

    @asynccontextmanager
    async def joined(self, peer: Peer) -> AsyncIterator[None]:
        """Give services the messages of a peer, for as long as its link lasts."""
        async with AsyncExitStack() as stack:
            for service in self._services:
                await stack.enter_async_context(self._joined(service, peer))
            yield

    async def run(self) -> None:
        """Run all services, and close them in the end.

        Raises:
            Exception: one of `fatal`, which a service has raised.
        """
        try:
            async with FailFastGroup() as group:
                group.start(wait_for_ever())
                for service in self._services:
                    group.start(self._run(service))
        finally:
            await self._close()

    def start(self) -> None:
        """Run all services until `stop`."""
        self._running = asyncio.create_task(self.run())

    async def stop(self) -> None:
        """End all services. Idempotent."""
        if self._running is not None:
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)
        await self._close()

    async def _close(self) -> None:
        for service in self._services:
            try:
                await service.close()
            except Exception:  # a plugin may raise anything, and the other services have to be closed
                logger.exception(FAILED, type(service).__name__)

    async def _run(self, service: NodeService) -> None:
        try:
            await service.run()
        except self.fatal:
            raise
        except Exception:  # a plugin may raise anything, and the node goes on without its service
            logger.exception(FAILED, type(service).__name__)

    @asynccontextmanager
    async def _joined(self, service: NodeService, peer: Peer) -> AsyncIterator[None]:
        """Enter the context of a service; if that fails, the peer has joined without it."""
        has_entered, ended = False, None
        try:
            async with service.joined(peer) as takers:
                for kind, take in takers.items():
                    peer.channel.divert(kind, partial(_take, service, take))
                has_entered = True
                try:
                    yield
                except BaseException as error:
                    ended = error
                    raise
        except Exception as error:
            if error is ended or isinstance(error, self.fatal):
                raise
            if not isinstance(error, PeerLost):  # whoever reads the link notices that
                logger.exception(FAILED, type(service).__name__)
        if not has_entered:
            yield
        elif ended is not None:  # whatever the service made of it
            raise ended


def _take(service: NodeService, take: Callable[[Any], None], message: ServiceMessage) -> None:
    """Give a message to a service.

    Raises:
        PeerLost: if that fails; the link ends.
    """
    try:
        take(message)
    except PeerLost:
        raise
    except Exception as error:
        logger.exception(FAILED, type(service).__name__)
        raise PeerLost(f"a {type(message).__name__} cannot be taken: {error}", "see the log above") from error

"""Reaches the rendezvous of join codes, by the transport that they name."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from parallax_cluster.config.home import rendezvous_folder, signing_key_file
from parallax_cluster.deploy.join_codes import get_method
from parallax_cluster.deploy.joined import JoinedHead, list_joined
from parallax_cluster.deploy.joining import Joiner
from parallax_cluster.deploy.signing_key import ensure_signing_key
from parallax_cluster.membership.announcement import ClusterSecret
from parallax_cluster.membership.join_code import JoinCode, read_code
from parallax_cluster.node.membership.rendezvous_client import Announcer, RendezvousClient, RendezvousPlace
from parallax_core.api import IncompatibleNode, JoinMethod, ParallaxError, TransportPlan, UsageError
from parallax_core.api.deployment import PluginHost

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RendezvousCodes:
    """The join codes of the rendezvous where nodes and heads of a cluster meet."""

    plugins: PluginHost
    codes: tuple[JoinCode, ...]
    transport: str
    """The transport of all of them, and of the links of the cluster."""
    joiner: Joiner

    @property
    def method(self) -> JoinMethod:
        """The part of the transport that uses codes."""
        return get_method(self.plugins, self.transport)

    @property
    def secrets(self) -> tuple[ClusterSecret, ...]:
        """The secret of each code."""
        return tuple(ClusterSecret(code.secret) for code in self.codes)

    def find_near(self) -> str:
        """Return the address of a rendezvous, as this machine reaches it.

        Raises:
            ParallaxError: if none admits this machine; the reason of the first.
        """
        return asyncio.run(self._find_any()).address

    async def _find_any(self) -> JoinedHead:
        errors: list[ParallaxError] = []
        for done in asyncio.as_completed([self.enter(code) for code in self.codes]):
            try:
                return await done
            except ParallaxError as error:
                errors.append(error)
        raise errors[0]

    async def enter(self, code: JoinCode) -> JoinedHead:
        """Return the rendezvous of a code, which has admitted this machine now or, if it refuses, before.

        Raises:
            ParallaxError: if it cannot be found or reached, or refuses.
        """
        try:
            found = await self.joiner.enrol(code)
        except IncompatibleNode:
            raise
        except ParallaxError:
            if (known := self._recall(code)) is None:
                raise
            return known
        try:
            found.save(rendezvous_folder())
        except OSError as error:  # it is needed only once the code has expired
            logger.warning("the rendezvous at %s cannot be recorded: %s", found.address, error)
        return found

    def _recall(self, code: JoinCode) -> JoinedHead | None:
        """Return the rendezvous of a code if it has admitted this machine before: the code may have expired since."""
        if not code.head:
            return None
        key = self.method.find_key(code.head)
        known = [each for each in list_joined(rendezvous_folder()) if each.transport == self.transport]
        return next((each for each in known if self.method.find_key(each.head) == key), None)

    async def reach(self, code: JoinCode) -> RendezvousPlace:
        """Return the rendezvous of a code with a transport that has started.

        Raises:
            ParallaxError: as `enter` does.
        """
        found = await self.enter(code)
        offer, node = self.plugins.transports().get(self.transport), f"{found.machine}/{os.getpid()}"
        plan = TransportPlan(node=node, timeout_s=offer.spec.timeout_s, heads=self.joiner.find_key(found))
        transport = offer.load(offer.spec.factory)(plan)
        await transport.start()
        return RendezvousPlace(transport, found.address, node)

    def make_announcer(self) -> Announcer:
        """Return what signs the announcements of this process.

        Raises:
            ParallaxError: if this machine can have no key.
        """
        return Announcer(ensure_signing_key(signing_key_file()), os.getpid())

    @asynccontextmanager
    async def linked(
        self, announcer: Announcer, heard: Callable[[], None]
    ) -> AsyncIterator[Sequence[RendezvousClient]]:
        """Keep links to all rendezvous, and yield their clients; ``heard`` is called when one has heard news."""
        clients = [RendezvousClient(ClusterSecret(code.secret), announcer, heard) for code in self.codes]
        pairs = zip(clients, self.codes, strict=True)
        tasks = [asyncio.create_task(client.run(lambda code=code: self.reach(code))) for client, code in pairs]  # type: ignore[misc]
        try:
            yield clients
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


def read_codes(plugins: PluginHost, words: Sequence[str], *, looks_around: bool) -> RendezvousCodes:
    """Return what is needed to meet by join codes.

    Raises:
        UsageError: if one is no code, or they are of different transports.
        ParallaxError: if their transport is not installed or has no join codes.
    """
    codes = tuple(dict.fromkeys(read_code(word) for word in words))
    transports = {code.transport for code in codes}
    if len(transports) > 1:
        message = f"the codes are of different transports: {', '.join(sorted(transports))}"
        raise UsageError(message, "links of one cluster use one; leave out the codes of the others")
    [transport] = transports
    get_method(plugins, transport)
    return RendezvousCodes(plugins, codes, transport, Joiner(plugins, looks_around=looks_around))

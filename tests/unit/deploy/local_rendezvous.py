"""Rendezvous for tests: real ones over TCP on loopback, with homes of their own, and some in this process."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from nacl.signing import SigningKey

from parallax_cluster.config.rendezvous import RendezvousSettings
from parallax_cluster.deploy.rendezvous_host import host_rendezvous
from parallax_cluster.membership.announcement import ClusterSecret
from parallax_cluster.node.membership.rendezvous import RendezvousServer
from parallax_cluster.node.membership.rendezvous_client import Announcer, RendezvousClient, RendezvousPlace
from parallax_core.api import TransportPlan
from parallax_core.base.errors import ParallaxError, PeerLost
from parallax_core.builtin.inprocess import InProcessTransport
from parallax_core.config.config import Config
from parallax_core.contracts.joining import Enrolment
from parallax_core.contracts.node_service import LinkPurpose
from parallax_core.node.membership.registry import NodeRegistry
from parallax_core.plugins.host import PluginHost
from tests.unit.node.cluster import open_registry


@contextmanager
def at_home(home: Path) -> Iterator[None]:
    """Have this process be the machine with a home."""
    before = os.environ.get("PARALLAX_HOME")
    os.environ["PARALLAX_HOME"] = str(home)
    try:
        yield
    finally:
        if before is None:
            del os.environ["PARALLAX_HOME"]
        else:
            os.environ["PARALLAX_HOME"] = before


@asynccontextmanager
async def hosting(home: Path, **given: object) -> AsyncIterator[tuple[str, str]]:
    """Run a rendezvous, and yield its address and its code."""
    told: asyncio.Future[tuple[str, str]] = asyncio.get_running_loop().create_future()
    settings = RendezvousSettings(**{"listen": "tcp://127.0.0.1:0", "discovery": False, **given})  # type: ignore[arg-type]
    with at_home(home):
        plugins = PluginHost.discover(Config())
        task = asyncio.create_task(host_rendezvous(settings, plugins, lambda *place: told.set_result(place)))
        while not (task.done() or told.done()):  # noqa: ASYNC110 -- either may come
            await asyncio.sleep(0.005)
    try:
        if task.done():
            task.result()
        yield told.result()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


class HeadMethod:
    """A join method whose heads are texts; those among ``open_heads`` admit this machine."""

    def __init__(self, *open_heads: bytes) -> None:
        self.open_heads = open_heads
        self.asked: list[tuple[bytes, bytes]] = []
        """The head and the secret of each attempt."""

    def find_key(self, head: bytes) -> bytes:
        if head == b"damaged":
            raise ParallaxError("damaged")
        return head

    def derive_proof(self, secret: bytes) -> bytes:
        return b"proof of " + secret

    async def enrol(self, head: bytes, secret: bytes, machine: str, versions: bytes) -> Enrolment:
        self.asked.append((head, secret))
        if head not in self.open_heads:
            raise PeerLost("not here")
        return Enrolment(machine=machine, address=head.decode())


@dataclass
class LocalRendezvous:
    """What `RendezvousCodes` is to a machine, with rendezvous in this process."""

    name: str
    registries: Sequence[NodeRegistry]
    secrets: Sequence[ClusterSecret]
    method: HeadMethod = field(default_factory=HeadMethod)
    transport: str = "inprocess"

    def make_announcer(self) -> Announcer:
        return Announcer(SigningKey(self.name.encode().ljust(32)[:32]), 7)

    @asynccontextmanager
    async def linked(self, announcer: Announcer, heard: Callable[[], None]) -> AsyncIterator[list[RendezvousClient]]:
        pairs = list(zip(self.registries, self.secrets, strict=True))
        clients = [RendezvousClient(secret, announcer, heard) for _, secret in pairs]
        reaches = [partial(self.reach, registry) for registry, _ in pairs]
        tasks = [asyncio.create_task(each.run(reach)) for each, reach in zip(clients, reaches, strict=True)]
        try:
            yield clients
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def reach(self, registry: NodeRegistry) -> RendezvousPlace:
        transport = InProcessTransport(TransportPlan(node=self.name))
        await transport.start()
        return RendezvousPlace(transport, registry.address, self.name)


@asynccontextmanager
async def open_rendezvous() -> AsyncIterator[NodeRegistry]:
    """Run a rendezvous in this process."""
    async with open_registry() as registry:
        registry.purposes["rendezvous"] = LinkPurpose(serve=RendezvousServer().serve, must_have_joined=False)
        yield registry

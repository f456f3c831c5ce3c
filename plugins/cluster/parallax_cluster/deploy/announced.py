"""Announces a node's fixed layers until a head admits it."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

import msgspec

from parallax_cluster.deploy.joined import JoinedHead
from parallax_cluster.deploy.rendezvous import RendezvousCodes, read_codes
from parallax_cluster.membership.announcement import ClusterSecret
from parallax_cluster.membership.calls import LayerOffer, find_calls, find_offers, read_call
from parallax_cluster.membership.join_code import read_code
from parallax_cluster.node.membership.rendezvous_client import Announcer, RendezvousClient
from parallax_core.api import LayerRange, ParallaxError, PeerLost, UsageError, WorkerRequest, name_machine
from parallax_core.api.deployment import Catalog, PluginHost, WorkerSettings, find_backends, name_node
from parallax_core.api.node import configure_log, run_until_signal, write_own_versions
from parallax_core.deploy.head_access import HeadAccess, WorkRequest
from parallax_core.deploy.stage_opener import name_offered, read_layers
from parallax_core.node.membership.joined_node import HeldLayers

logger = logging.getLogger(__name__)

SHUN_S = 20.0
"""Seconds for which a head is not tried again that did not admit this node, or was lost."""
LOOK_S = 1.0
TRIES = 4
"""Attempts of a node that was called to join its head again, before it announces itself to all once more."""


@dataclass(slots=True)
class AnnouncedNode:
    """A node that offers fixed layers to whoever calls it."""

    codes: RendezvousCodes
    offer: LayerOffer
    announcer: Announcer
    _shunned: dict[bytes, float] = field(default_factory=dict)
    """By key of a head: until when it is not tried."""

    async def await_head(self) -> JoinedHead:
        """Announce the offer until a head has called and admitted this machine, and return that head."""
        news = asyncio.Event()
        signer, number = self.announcer.signer, self.announcer.number
        async with self.codes.linked(self.announcer, news.set) as clients:
            for client in clients:
                client.follow([find_calls(client.secret, signer, number)])
                client.announce(find_offers(client.secret), msgspec.msgpack.encode(self.offer))
            while True:
                if (head := await self._try_calls(clients)) is not None:
                    await self._withdraw(clients)
                    return head
                news.clear()
                with suppress(TimeoutError):
                    async with asyncio.timeout(LOOK_S):
                        await news.wait()

    def shun(self, head: bytes) -> None:
        """Do not try a head again for `SHUN_S`, by its description."""
        self._shunned[self.codes.method.find_key(head)] = time.monotonic() + SHUN_S

    async def _try_calls(self, clients: Sequence[RendezvousClient]) -> JoinedHead | None:
        """Return the first head that has called and admits this machine, or None."""
        for client in clients:
            topic = find_calls(client.secret, self.announcer.signer, self.announcer.number)
            for announcement in client.list_current(topic):
                call = read_call(announcement)
                if call is None or self._is_shunned(call.head):
                    continue
                if (head := await self._enrol(call.head, client.secret)) is not None:
                    return head
        return None

    async def _enrol(self, head: bytes, secret: ClusterSecret) -> JoinedHead | None:
        own = write_own_versions()
        try:
            found = await self.codes.method.enrol(head, secret.enrolment, name_machine(name_node(0)), own)
        except ParallaxError as error:
            logger.warning("a head has called that does not admit this node: %s", error.message)
            self.shun(head)
            return None
        return JoinedHead(transport=self.codes.transport, address=found.address, head=head, machine=found.machine)

    def _is_shunned(self, head: bytes) -> bool:
        try:
            return self._shunned.get(self.codes.method.find_key(head), 0.0) > time.monotonic()
        except ParallaxError:  # it is damaged
            return True

    async def _withdraw(self, clients: Sequence[RendezvousClient]) -> None:
        for client in clients:
            client.announce(find_offers(client.secret), b"")
        await asyncio.sleep(0.1)  # for the links to send that


def make_announced(settings: WorkerSettings, plugins: PluginHost) -> AnnouncedNode:
    """Return the node that ``settings`` describe, creating this machine's keys if needed.

    Raises:
        UsageError: if settings are missing or contradict each other.
        ParallaxError: if a backend, the transport or the model is unknown, or no rendezvous admits this machine.
    """
    if not (settings.model and settings.layers and settings.announce):
        message = "a node that announces layers needs a model, --layers and --announce"
        raise UsageError(message, "write `parallax worker MODEL --layers A-B --announce CODE`")
    if settings.connect:
        raise UsageError("--connect and --announce contradict each other", "a node that announces layers is called")
    layers = read_layers(settings.layers)
    find_backends(plugins, settings.backend)
    codes = read_codes(plugins, settings.announce, looks_around=settings.discovery)
    offer = LayerOffer(name_offered(Catalog(plugins), settings.model), layers.start, layers.stop)
    codes.find_near()
    return AnnouncedNode(codes, offer, codes.make_announcer())


def work(request: WorkerRequest) -> None:
    """Announce the layers that settings name, and run them for one head after another, until told to end.

    Raises:
        UsageError: if settings contradict each other.
        ParallaxError: if a backend, the transport or the model is unknown, or no rendezvous can be reached at first.
    """
    assert isinstance(request, WorkRequest), "core made it"
    configure_log(verbose=request.settings.verbose)
    for code in request.settings.announce:
        read_code(code)
    request.tell()
    announced = make_announced(request.settings, request.plugins)
    offer = announced.offer
    held = HeldLayers(offer.model, LayerRange(offer.start, offer.stop))
    while True:
        logger.info("announcing layers %d-%d of %s", offer.start, offer.stop, offer.model)
        if (head := asyncio.run(run_until_signal(announced.await_head()))) is None:
            return
        node, keys = f"{head.machine}/{os.getpid()}", announced.codes.joiner.find_key(head)
        given = replace(request.settings, connect=head.address, node=node, transport=head.transport)
        try:
            request.run_worker(given, HeadAccess(keys, fixed=held, tries=TRIES))
        except PeerLost as error:
            logger.warning("the server that called is lost: %s", error.message)
            announced.shun(head.head)
        else:
            return

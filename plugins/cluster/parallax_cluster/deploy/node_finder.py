"""Finds nodes that announce layers of a head's model, and calls them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

import msgspec

from parallax_cluster.deploy.rendezvous import RendezvousCodes
from parallax_cluster.membership.announcement import Announcement
from parallax_cluster.membership.calls import HeadCall, find_calls, find_offers, read_offer
from parallax_cluster.node.membership.rendezvous_client import RendezvousClient
from parallax_core.api import Admission, ParallaxError

logger = logging.getLogger(__name__)

MOST_CALLED = 256
"""The most nodes that a head calls at a time, at each rendezvous."""
LOOK_S = 2.0


@dataclass(frozen=True, slots=True)
class MemberAdmission:
    """Admits machines that know the secret of a cluster, and those that ``others`` admits; an `Admission`."""

    proofs: frozenset[bytes]
    others: Admission

    def knows(self, proof: bytes) -> bool:
        """Return whether a machine with this proof may be admitted."""
        return proof in self.proofs or self.others.knows(proof)

    def check_versions(self, versions: bytes) -> None:
        """Check that this head can work with a machine; see `Admission`."""
        self.others.check_versions(versions)

    def admit(self, proof: bytes, key: bytes) -> None:
        """Admit a machine; see `Admission`.

        Raises:
            ParallaxError: if it is not admitted.
        """
        if proof not in self.proofs:
            self.others.admit(proof, key)


def admit_members(codes: RendezvousCodes, others: Admission) -> MemberAdmission:
    """Return an admission of nodes called by ``codes`` and of those that ``others`` admits."""
    proofs = [codes.method.derive_proof(secret.enrolment) for secret in codes.secrets]
    return MemberAdmission(frozenset(proofs), others)


@dataclass(slots=True)
class NodeFinder:
    """Calls nodes that announce layers of a model. Belongs to one event loop."""

    codes: RendezvousCodes
    model: str
    """The full name of the model."""
    num_layers: int
    head: bytes
    """The description of the head."""
    _called: dict[RendezvousClient, set[bytes]] = field(default_factory=dict)
    """By rendezvous: the topics of the calls."""

    @asynccontextmanager
    async def calling(self) -> AsyncIterator[None]:
        """Call nodes until the end of the context."""
        announcer = await asyncio.to_thread(self.codes.make_announcer)
        news = asyncio.Event()
        async with self.codes.linked(announcer, news.set) as clients:
            for client in clients:
                client.follow([find_offers(client.secret)])
            calling = asyncio.create_task(self._call(clients, news))
            try:
                yield
            finally:
                calling.cancel()
                await asyncio.gather(calling, return_exceptions=True)

    async def _call(self, clients: Sequence[RendezvousClient], news: asyncio.Event) -> None:
        while True:
            for client in clients:
                self._call_at(client)
            news.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S):
                    await news.wait()

    def _call_at(self, client: RendezvousClient) -> None:
        """Call the nodes that announce themselves at a rendezvous; those that have joined announce nothing."""
        offers = client.list_current(find_offers(client.secret))
        wanted = [each for each in offers if self._is_wanted(each)][:MOST_CALLED]
        topics = {find_calls(client.secret, each.signer, each.body.number) for each in wanted}
        before = self._called.get(client, set())
        if new := topics - before:
            logger.info("calling %d nodes that announce layers", len(new))
        for topic in before - topics:
            client.announce(topic, b"")
        for topic in new:
            client.announce(topic, msgspec.msgpack.encode(HeadCall(self.head)))
        self._called[client] = topics

    def _is_wanted(self, announcement: Announcement) -> bool:
        offer = read_offer(announcement)
        if offer is None or offer.model != self.model:
            return False
        return offer.start < offer.stop <= self.num_layers


def check_head(head: bytes) -> bytes:
    """Return the description of a head that nodes can be given.

    Raises:
        ParallaxError: if there is none.
    """
    if not head:
        message = "other machines cannot reach this server"
        raise ParallaxError(message, "give an address at which they can: --listen tcp://0.0.0.0:9000")
    return head

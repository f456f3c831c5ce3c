"""Admits machines to a head by join codes, and has them find it; a `NodeAdmission`."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial

from parallax_cluster.config.home import cluster_file
from parallax_cluster.deploy.backup import hold_state
from parallax_cluster.deploy.balance import balance_layers
from parallax_cluster.deploy.discovery import being_found
from parallax_cluster.deploy.join_codes import find_method, note_listening
from parallax_cluster.deploy.network import telling_addresses
from parallax_cluster.deploy.relays import make_relay
from parallax_cluster.deploy.succession import adopt_machines
from parallax_cluster.node.membership.code_store import CodeStore
from parallax_cluster.node.membership.rendezvous import RendezvousServer
from parallax_cluster.node.relay.directory import RelayDirectory
from parallax_core.api import (
    Admission,
    Enrolling,
    LinkPurpose,
    ListeningHead,
    MachineKeys,
    ServerRequest,
    Transport,
    TransportSpec,
)
from parallax_core.api.deployment import Offer, ServeSettings
from parallax_core.deploy.additions import Additions
from parallax_core.deploy.fixed import FixedPlan, read_plan
from parallax_core.deploy.kinds import ServeRequest
from parallax_core.node.membership.registry import NodeRegistry


@dataclass(frozen=True, slots=True)
class CodeAdmission:
    """Admits machines by join codes."""

    admission: Admission | None = None
    """Decides which are admitted; None: the codes of this machine."""

    def equip(
        self, registry: NodeRegistry, transport: Transport, offer: Offer[TransportSpec], settings: ServeSettings
    ) -> None:
        """Make a head admit machines, relay between them and be their rendezvous; see `NodeAdmission.equip`."""
        registry.services.find(RelayDirectory).server = make_relay(settings, registry.has)
        if not settings.listen:
            return
        if isinstance(transport, Enrolling):
            transport.enrol_by(self.admission or CodeStore(cluster_file()))
        registry.purposes["rendezvous"] = LinkPurpose(serve=RendezvousServer().serve, must_have_joined=False)
        keys: object = find_method(offer)
        if isinstance(keys, MachineKeys):
            adopt_machines(keys)
            registry.keys = keys

    @asynccontextmanager
    async def listening(
        self, registry: NodeRegistry, offer: Offer[TransportSpec], settings: ServeSettings
    ) -> AsyncIterator[ListeningHead | None]:
        """Note where a head listens, for new codes, and have machines find it; see `NodeAdmission.listening`."""
        places = (settings.listen or "", registry.address)
        async with AsyncExitStack() as stack:
            stack.enter_context(hold_state())
            head = note_listening(offer, *places)
            stack.enter_context(telling_addresses(places, settings.stun_port))
            if settings.discovery:
                await stack.enter_async_context(being_found(offer, *places))
            yield head


def selects(settings: ServeSettings) -> bool:
    """Return whether machines may join the server of ``settings``, or its stages may differ in speed."""
    return settings.listen is not None or settings.relay or settings.stages > 1


def plan(request: ServerRequest) -> FixedPlan:
    """Return the plan of a server with stages chosen by the user, for machines that join by codes.

    Layers move from slow stages to fast ones if the user has not assigned them.
    """
    assert isinstance(request, ServeRequest), "core made it"

    additions = Additions(admission=CodeAdmission(), balance=partial(balance_layers, request.plugins))
    return read_plan(request.settings, request.plugins, additions)

"""Makes the services of nodes of a cluster."""

from __future__ import annotations

from dataclasses import dataclass, replace

from parallax_cluster.config.home import known_terms_file
from parallax_cluster.deploy.further_nodes import drop_port, make_further_command
from parallax_cluster.deploy.memory_claim import MemoryClaim
from parallax_cluster.deploy.node_reports import make_reporter
from parallax_cluster.deploy.relays import make_offer
from parallax_cluster.deploy.worker_record import RecordService
from parallax_cluster.node.forwarding.forwarded import ForwardedConnections
from parallax_cluster.node.membership.lease_opener import LeaseOpener
from parallax_cluster.node.profile.head_service import ReportService
from parallax_cluster.node.profile.link_prober import LinkProber
from parallax_cluster.node.profile.reporter import NodeReporter
from parallax_cluster.node.profile.service import ProfileService
from parallax_cluster.node.relay.directory import RelayDirectory
from parallax_cluster.node.relay.offer import RelayOffer
from parallax_cluster.node.relay.paths import RelayPaths
from parallax_cluster.node.relay.service import RelayService
from parallax_cluster.node.worker.further import FurtherNodes
from parallax_cluster.node.worker.lease_session import LeaseSession
from parallax_cluster.node.worker.leases import NodeLeases
from parallax_cluster.node.worker.link_trials import LinkTrials
from parallax_cluster.node.worker.terms import HeadTerms
from parallax_cluster.wire.further import EndNode, OpenLease, StartNode
from parallax_cluster.wire.profile import LinkTried, NodeReport, Peers, Probe, ProbeAnswer, TryLink
from parallax_cluster.wire.relay import (
    NotReached,
    OfferRelay,
    PickUp,
    Reach,
    Reached,
    Relays,
    RelayUsers,
    Relinked,
    Ring,
)
from parallax_cluster.wire.rendezvous import Announced, Follow
from parallax_cluster.wire.succession import ClusterState, Succession
from parallax_core.api import is_further
from parallax_core.deploy.node_services import WorkerContext, open_transport
from parallax_core.node.membership.registry import NodeRegistry
from parallax_core.node.worker.node_services import NodeServices
from parallax_core.node.worker.rejoin import HeadPlace

FORWARDING = ()
RELAY = (Relays, Reach, Ring, PickUp, Reached, NotReached, OfferRelay, RelayUsers, Relinked)
PROFILE = (NodeReport, Peers, TryLink, LinkTried, Probe, ProbeAnswer)
FURTHER = (StartNode, EndNode)
LEASES = (OpenLease,)
SUCCESSION = (Succession, ClusterState)
RENDEZVOUS = (Follow, Announced)
RECORD = ()


def make_relay(context: WorkerContext) -> RelayService:
    """Return the service that links a node over relays."""
    return add_relays(context.services, context.node, make_offer(context.settings))


def add_relays(services: NodeServices, node: str, offer: RelayOffer | None = None) -> RelayService:
    """Return the service that links the node called ``node`` over relays, by whose paths it is linked from now on."""
    services.paths = paths = RelayPaths(services.paths.transport, node)
    return RelayService(paths, node, services.trusted, offer)


def make_profile(context: WorkerContext) -> ProfileService:
    """Return the service that reports and measures what a node has."""
    prober = LinkProber(context.services.paths, context.node)
    reporter = make_reporter(context.settings, context.config_file, context.plugins, context.opener.backends, prober)
    if context.settings.as_joined:
        claim = MemoryClaim(context.settings.memory_bytes)
        context.opener.find_limit = reporter.find_limit = claim.find_limit
    return make_measuring(context.services, context.node, reporter)


def make_measuring(services: NodeServices, node: str, reporter: NodeReporter) -> ProfileService:
    """Return the service that measures with ``reporter``."""
    return ProfileService(reporter, LinkTrials(services.paths, node, services.trusted, reporter), services.trusted)


def make_further(context: WorkerContext) -> FurtherNodes | None:
    """Return the service that starts further nodes, or None for a further node."""
    if is_further(context.node):
        return None

    def make_command(node: str) -> list[str]:
        settings = replace(context.settings, connect=context.place.address)
        return make_further_command(settings, context.config_file, context.keys, node)

    return FurtherNodes(context.node, make_command)


def make_leases(context: WorkerContext) -> NodeLeases:
    """Return the service that opens leases."""
    return NodeLeases(context.node, LeaseMaker(context))


def make_record(context: WorkerContext) -> RecordService | None:
    """Return the service by which `parallax cluster leave` finds a worker, or None for one that a server started."""
    if context.settings.supervised:
        return None
    return RecordService(context.node, context.settings.connect, context.api_url)


def make_terms(context: WorkerContext) -> HeadTerms | None:
    """Return the service that knows the terms of coordinators, or None for a node that a server started."""
    if context.settings.supervised:
        return None
    return HeadTerms(context.settings.connect, context.keys, known_terms_file())


@dataclass(frozen=True, slots=True)
class LeaseMaker:
    """Makes the leases of a node, which join the head that the node has found."""

    context: WorkerContext

    def __call__(self, name: str) -> LeaseSession:
        """Return the lease of a name."""
        node = self.context
        listen = drop_port(node.settings.listen) if node.settings.listen else None
        services = NodeServices(open_transport(node.settings, node.plugins, name, node.keys, listen))
        services.add(add_relays(services, name))
        services.add(make_measuring(services, name, NodeReporter(lambda: None)))
        place = HeadPlace(node.place.address, node.place.head, name)
        return LeaseSession(services, node.layers, place, node.describe())


def make_directory(registry: NodeRegistry) -> RelayDirectory:
    """Return the service by which a head knows the relays."""
    return RelayDirectory(registry.node, lambda: registry.joined)


make_forwarded = ForwardedConnections
"""Returns the service by which a head answers clients of machines that have joined."""
make_reports = ReportService
"""Returns the service that takes the reports of nodes."""
make_lease_opener = LeaseOpener
"""Returns the service by which a head asks for leases."""

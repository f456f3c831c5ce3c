"""Makes the services that nodes of a cluster have."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from parallax_cluster.deploy.cluster_services import (
    add_relays,
    make_directory,
    make_lease_opener,
    make_measuring,
    make_reports,
)
from parallax_cluster.node.membership.lease_opener import LeaseOpener
from parallax_cluster.node.profile.reporter import NodeReporter
from parallax_core.contracts.node_service import NodeService
from parallax_core.contracts.transport import Transport
from parallax_core.node.membership.joined_node import JoinedNode
from parallax_core.node.membership.registry import NodeRegistry
from parallax_core.node.worker.node_services import NodeServices


def make_services(
    transport: Transport, node: str, others: Iterable[NodeService] = (), reporter: NodeReporter | None = None
) -> NodeServices:
    """Return the services of the node called ``node``: relays, reports, and ``others``."""
    made = NodeServices(transport)
    made.add(add_relays(made, node))
    made.add(make_measuring(made, node, reporter or NodeReporter(lambda: None)))
    for service in others:
        made.add(service)
    return made


def equip(registry: NodeRegistry) -> NodeRegistry:
    """Give a head the services that it has in a cluster, and return it."""
    for make in (make_directory, make_reports, make_lease_opener):
        registry.services.add(make(registry))
    return registry


@dataclass(slots=True)
class AllMembers:
    """All nodes of a head, as those that may have layers of a model."""

    registry: NodeRegistry
    changed: asyncio.Event = field(init=False)

    def __post_init__(self) -> None:
        self.changed = self.registry.changed

    @property
    def joined(self) -> tuple[JoinedNode, ...]:
        return self.registry.joined

    def note_leaving(self, name: str) -> None:
        self.registry.note_leaving(name)

    def want_leases(self, numbers: Mapping[str, int]) -> None:
        self.registry.services.find(LeaseOpener).want(numbers)

"""Makes the services that nodes of a cluster have."""

from __future__ import annotations

from collections.abc import Iterable

from parallax_core.contracts.node_service import NodeService
from parallax_core.contracts.transport import Transport
from parallax_core.deploy.cluster_services import add_relays, make_measuring
from parallax_core.node.profile.reporter import NodeReporter
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

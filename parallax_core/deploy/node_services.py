"""Makes the services that plugins offer for a node or a head."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from parallax_core.base.errors import BrokenPlugin, PluginConflict
from parallax_core.config.worker import WorkerSettings
from parallax_core.contracts.node_service import NodeService, NodeServiceSpec, ServiceContext
from parallax_core.contracts.service_message import RESERVED, TAGS_OF_ONE, ServiceMessage, service_tag
from parallax_core.contracts.transport import Transport
from parallax_core.deploy.node_transport import choose_listen, make_transport
from parallax_core.deploy.stage_opener import StageOpener
from parallax_core.node.worker.node_services import NodeServices
from parallax_core.node.worker.rejoin import HeadPlace
from parallax_core.node.worker.shared_layers import SharedLayers
from parallax_core.plugins.host import PluginHost
from parallax_core.plugins.registry import Offer
from parallax_core.wire.codec import find_number, index_kinds
from parallax_core.wire.membership import Join

OWN = "parallax-"
"""How the names of our own distributions begin."""


@dataclass(frozen=True, slots=True)
class WorkerContext:
    """A node, as our own services see it; see `ServiceContext`."""

    node: str
    services: NodeServices
    settings: WorkerSettings
    plugins: PluginHost
    config_file: Path | None
    opener: StageOpener
    """Knows the backends of the node, and what memory it may use."""
    keys: dict[str, bytes]
    """The keys of heads to trust, by name; whoever turns to another head changes them."""
    layers: SharedLayers
    place: HeadPlace
    """Where the head is."""
    join: Join
    """What the node says of itself when it joins."""

    @property
    def transport(self) -> Transport:
        """Its transport."""
        return self.services.paths.transport


def open_transport(
    settings: WorkerSettings, plugins: PluginHost, node: str, keys: Mapping[str, bytes], listen: str | None
) -> Transport:
    """Return the transport of the node called ``node``, not started."""
    offer = plugins.transports().get(settings.transport)
    return make_transport(
        offer, node, choose_listen(offer, listen, settings.connect, node), keys, settings.peer_timeout
    )


def make_services(plugins: PluginHost, side: Literal["node", "head"], context: ServiceContext) -> Iterator[NodeService]:
    """Yield the services that plugins offer for a node or a head.

    Raises:
        BrokenPlugin: if a service cannot be imported, or its messages have tags of others.
        PluginConflict: if messages of two services have the same tag.
    """
    offers = plugins.node_services().offers
    check_messages(offers)
    for offer in offers:
        ref = offer.spec.node if side == "node" else offer.spec.head
        if ref is not None and (service := offer.load(ref)(context)) is not None:
            yield service


def check_messages(offers: tuple[Offer[NodeServiceSpec], ...]) -> None:
    """Check the tags of all messages; see `make_services`."""
    kinds = [(offer, kind) for offer in offers for kind in offer.load(offer.spec.messages)]
    for offer, kind in kinds:
        _check_tag(offer, kind)
    try:
        index_kinds(kind for _, kind in kinds)
    except ValueError as error:
        raise PluginConflict(str(error), "remove one of the plugins: `parallax plugins` lists them") from error


def _check_tag(offer: Offer[NodeServiceSpec], kind: type[ServiceMessage]) -> None:
    distribution = offer.plugin.distribution
    try:
        tag = find_number(kind)
    except ValueError as error:
        raise BrokenPlugin(f"{offer.spec.name!r} of {offer.plugin.origin}: {error}", HINT) from error
    first = service_tag(distribution, 0)
    if not (first <= tag < first + TAGS_OF_ONE or (tag < RESERVED and distribution.startswith(OWN))):
        raise BrokenPlugin(
            f"{offer.spec.name!r} of {offer.plugin.origin} has a message with tag {tag}, which is not one of its tags",
            HINT,
        )


HINT = "its author should number it with `service_tag` and the name of the distribution"

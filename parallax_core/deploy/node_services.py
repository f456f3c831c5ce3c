"""Makes the services that plugins offer for a node or a head."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from parallax_core.base.errors import BrokenPlugin, ParallaxError, PluginConflict
from parallax_core.config.worker import WorkerSettings
from parallax_core.contracts.node_service import MessageKinds, NodeService, NodeServiceSpec, ServiceContext
from parallax_core.contracts.progress import Progress
from parallax_core.contracts.replica import PreparedModel
from parallax_core.contracts.transport import Transport
from parallax_core.deploy.node_transport import choose_listen, make_transport
from parallax_core.deploy.stage_opener import StageOpener
from parallax_core.node.worker.node_services import NodeServices
from parallax_core.node.worker.rejoin import HeadPlace
from parallax_core.node.worker.shared_layers import SharedLayers
from parallax_core.plugins.discovery import DISABLED_VARIABLE
from parallax_core.plugins.host import PluginHost
from parallax_core.plugins.registry import Offer
from parallax_core.plugins.remedy import describe_error
from parallax_core.wire.codec import check_tag, index_kinds
from parallax_core.wire.membership import Join


@dataclass(frozen=True, slots=True)
class WorkerContext:
    """A node, as our own services see it; see `NodeContext`."""

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
    describe: Callable[[], Join]
    """Returns what the node says of itself when it joins; called once all services are made."""
    api_url: str = ""
    """Where clients of this machine use the API of the head; empty: nowhere."""

    @property
    def transport(self) -> Transport:
        """Its transport."""
        return self.services.paths.transport

    def prepare_model(self, model: str, backend: str, progress: Progress) -> PreparedModel:
        """Find or fetch a model that the head names, and make the backend; see `NodeContext.prepare_model`."""
        return self.opener.prepare_model(model, backend, progress)

    async def pause(self) -> None:
        """Ask other services to leave the device alone, since a model is about to be loaded."""
        await self.services.pause()


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
        BrokenPlugin: if a service cannot be imported or made, or its messages have tags of others.
        PluginConflict: if two services have the same name, or a message with the same tag.
    """
    registry = plugins.node_services()
    offers = [registry.get(offer.spec.name) for offer in registry.offers]
    check_messages(offers)
    for offer in offers:
        ref = offer.spec.node if side == "node" else offer.spec.head
        if ref is not None and (service := _make(offer, offer.load(ref), context)) is not None:
            yield service


def _make(
    offer: Offer[NodeServiceSpec], make: Callable[[Any], NodeService | None], context: ServiceContext
) -> NodeService | None:
    try:
        return make(context)
    except ParallaxError:
        raise
    except Exception as error:
        message = f"{offer.spec.name!r} of {offer.plugin.origin} cannot be made: {describe_error(error)}"
        raise BrokenPlugin(
            message, f"see its author, or leave it out: {DISABLED_VARIABLE}={offer.plugin.distribution}"
        ) from error


def check_messages(offers: Iterable[Offer[NodeServiceSpec]]) -> None:
    """Check the tags of all messages; see `make_services`."""
    kinds = [kind for offer in offers for kind in _load_messages(offer)]
    try:
        index_kinds(kinds)
    except ValueError as error:
        raise PluginConflict(str(error), "remove one of the plugins: `parallax plugins` lists them") from error


def _load_messages(offer: Offer[NodeServiceSpec]) -> MessageKinds:
    kinds = offer.load(offer.spec.messages)
    try:
        for kind in kinds:
            check_tag(kind, offer.plugin.distribution)
    except ValueError as error:
        hint = "its author should number it with `service_tag` and the name of the distribution"
        raise BrokenPlugin(f"{offer.spec.name!r} of {offer.plugin.origin}: {error}", hint) from error
    return kinds

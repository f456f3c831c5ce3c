"""Runs a rendezvous on this machine, where nodes and servers with its code find each other."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import nullcontext

from parallax_cluster.config.home import cluster_file
from parallax_cluster.config.rendezvous import RendezvousSettings
from parallax_cluster.deploy.discovery import being_found
from parallax_cluster.deploy.join_codes import get_method, note_listening, try_code_of
from parallax_cluster.node.membership.code_store import CodeStore
from parallax_cluster.node.membership.rendezvous_host import RendezvousHost
from parallax_core.api import HEAD, Enrolling, ParallaxError
from parallax_core.api.deployment import PluginHost, make_transport

HOUR_S = 3600.0

logger = logging.getLogger(__name__)


async def host_rendezvous(settings: RendezvousSettings, plugins: PluginHost, tell: Callable[[str, str], None]) -> None:
    """Run a rendezvous until cancelled; ``tell`` is told its address and its new code, which may be empty.

    Raises:
        ParallaxError: if it cannot listen, no other machine can reach it, or its transport has no join codes.
    """
    offer = plugins.transports().get(settings.transport)
    get_method(plugins, settings.transport).prepare(HEAD)
    transport = make_transport(offer, HEAD, settings.listen, {}, None)
    if isinstance(transport, Enrolling):
        transport.enrol_by(CodeStore(cluster_file()))
    await transport.start()
    try:
        places = settings.listen, transport.address
        if (head := note_listening(offer, *places)) is None:
            message = f"other machines cannot reach {transport.address}"
            raise ParallaxError(message, "give an address at which they can, such as tcp://0.0.0.0:9100")
        lifetime_s = settings.code_hours * HOUR_S
        code = try_code_of(head, plugins, lifetime_s) if lifetime_s else ""
        logger.info("rendezvous listens at %s", transport.address)
        tell(transport.address, code)
        async with being_found(offer, *places) if settings.discovery else nullcontext():
            await RendezvousHost(transport, HEAD).run()
    finally:
        await transport.stop()

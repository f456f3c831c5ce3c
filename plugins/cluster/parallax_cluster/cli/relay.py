"""The command ``parallax cluster relay``."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Coroutine
from functools import partial

from parallax_cluster.cli.rendezvous import print_ready
from parallax_cluster.config.relay import RelayCommandSettings
from parallax_cluster.config.rendezvous import RendezvousSettings
from parallax_cluster.deploy.joined import JoinedHead
from parallax_cluster.deploy.joining import Joiner, check_where
from parallax_cluster.deploy.network import telling_addresses
from parallax_cluster.deploy.relays import read_limits
from parallax_cluster.deploy.rendezvous_host import host_rendezvous
from parallax_cluster.node.relay.host import RelayHost
from parallax_cluster.node.relay.offer import RelayOffer
from parallax_cluster.wire.profile import Peer
from parallax_core.api import HEAD, Transport, UsageError
from parallax_core.api.cli import Config, Contacts, PluginHost, from_section, new_app, tell, tell_contacts
from parallax_core.api.deployment import choose_listen, make_transport
from parallax_core.api.node import FailFastGroup, configure_log, run_until_signal

app = new_app()


@app.command()
@from_section("relay", RelayCommandSettings)
def relay(settings: RelayCommandSettings, config: Config) -> None:
    """Forward between machines of a server that cannot reach each other.

    It joins the server by a code as `parallax join` does, needs no model and no backend, and has to be reached by the
    machines. What passes is encrypted end to end between them. A server, or a machine with stages, does the same
    besides its work with --relay.

    With --rendezvous it is also the place where nodes and servers find each other by a join code (a bootstrap node),
    as `parallax cluster rendezvous` is: both need a machine that all others reach.
    """
    if not settings.where:
        raise UsageError("there is no join code", "`parallax cluster codes new` on the server's machine makes one")
    check_where(settings.where)
    configure_log(verbose=settings.verbose)
    contacts = Contacts(
        links=True,
        seeks=settings.discovery,
        is_found=settings.discovery and settings.rendezvous is not None,
        stun_port=settings.stun_port,
        fetches=False,
    )
    tell_contacts(contacts, offline=settings.offline, verbose=settings.verbose)
    plugins = PluginHost.discover(config)
    joiner = Joiner(plugins, looks_around=settings.discovery)
    joined = joiner.join(settings.where)
    node = f"{joined.machine}/{os.getpid()}"
    tell(f"joining {joined.address} as {node}", sys.stderr)
    offer = plugins.transports().get(joined.transport)
    listen = choose_listen(offer, settings.listen, joined.address, node)
    transport = make_transport(offer, node, listen, joiner.find_key(joined), settings.peer_timeout)
    relaying = _relay(settings, transport, joiner, joined, node)
    asyncio.run(run_until_signal(_run_both(relaying, _meet(settings, config, plugins, joined.transport))))


async def _run_both(relaying: Coroutine[None, None, None], meeting: Coroutine[None, None, None]) -> None:
    async with FailFastGroup() as group:
        group.start(relaying)
        group.start(meeting)


async def _meet(settings: RelayCommandSettings, config: Config, plugins: PluginHost, transport: str) -> None:
    """Be a rendezvous until cancelled, if ``settings`` ask for one."""
    if settings.rendezvous is None:
        return
    flags = {"listen": settings.rendezvous, "discovery": settings.discovery, "offline": settings.offline}
    rendezvous = config.read("rendezvous", RendezvousSettings, {**flags, "transport": transport})
    await host_rendezvous(rendezvous, plugins, print_ready)


async def _relay(
    settings: RelayCommandSettings, transport: Transport, joiner: Joiner, joined: JoinedHead, node: str
) -> None:
    """Relay until cancelled."""
    await transport.start()
    places = (settings.listen, transport.address) if settings.listen else (transport.address,)
    host = RelayHost(transport, node, RelayOffer(read_limits(settings)))
    seek = partial(joiner.list_addresses, joined) if settings.discovery else None
    try:
        with telling_addresses(places, settings.stun_port):
            await host.serve(Peer(HEAD, joined.address), seek)
    finally:
        await transport.stop()

"""The command ``parallax cluster rendezvous``."""

from __future__ import annotations

import asyncio
import sys

from parallax_cluster.config.rendezvous import RendezvousSettings
from parallax_cluster.deploy.rendezvous_host import host_rendezvous
from parallax_core.api.cli import Config, Contacts, PluginHost, from_section, new_app, tell, tell_contacts
from parallax_core.api.node import configure_log, run_until_signal

app = new_app()


@app.command()
@from_section("rendezvous", RendezvousSettings)
def rendezvous(settings: RendezvousSettings, config: Config) -> None:
    """Be the place where nodes and servers find each other by a join code (a bootstrap node).

    It prints one line with its address and a code, which all of them are given; several rendezvous may stand in for
    each other. What nodes and servers then say to each other does not come here:

    parallax worker org/model --layers 0-15 --announce CODE

    parallax serve org/model --find CODE
    """
    configure_log(verbose=settings.verbose)
    tell_contacts(
        Contacts(is_found=settings.discovery, fetches=False), offline=settings.offline, verbose=settings.verbose
    )
    asyncio.run(run_until_signal(host_rendezvous(settings, PluginHost.discover(config), print_ready)))


def print_ready(address: str, code: str) -> None:
    """Print the address of a rendezvous and its new code, which may be empty."""
    tell(f"ready {address} code={code}" if code else f"ready {address}", sys.stdout)

"""Says at the start of a command what leaves this machine by it, and how to turn that off."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from urllib.parse import urlsplit

from parallax_core.base.offline import go_offline, is_offline
from parallax_core.config.join import JoinSettings
from parallax_core.config.relay import RelayCommandSettings
from parallax_core.config.server import ServerSettings

HUB = "https://huggingface.co"
ASKED = 29753
"""Where the transports of this project look for servers."""
NOT_FOUND = "--no-discovery"


def tell_contacts(settings: ServerSettings | JoinSettings | RelayCommandSettings, *, listens: bool = False) -> None:
    """Print what leaves this machine, to standard error; with ``offline`` in the settings, have nothing leave it.

    Args:
        settings: of the command.
        listens: whether machines are told their address, as where they join, or at a relay.
    """
    if settings.offline or is_offline():
        go_offline()
        sentences = ["offline: only the addresses that you give, and machines that join, are contacted"]
    else:
        sentences = list(_list_contacts(settings, listens=listens))
    for sentence in sentences:
        print(f"network: {sentence}", file=sys.stderr, flush=True)


def _list_contacts(settings: ServerSettings | JoinSettings | RelayCommandSettings, *, listens: bool) -> Iterator[str]:
    """Yield a sentence for each thing that leaves this machine."""
    if isinstance(settings, ServerSettings):
        if listens and settings.discovery:
            yield f"machines on this network that have a code find this server, at UDP port {ASKED} (off: {NOT_FOUND})"
    else:
        if settings.discovery:
            yield f"the server is looked for by broadcasts on this network, at UDP port {ASKED} (off: {NOT_FOUND})"
        yield "links are made to the server, and to the machines that it names"
    if not isinstance(settings, JoinSettings) and listens and settings.stun_port:
        ports = f"{settings.stun_port} and {settings.stun_port + 1}"
        yield f"who asks is told the address he is seen from, at the ports {ports} (off: --stun-port 0)"
    if not isinstance(settings, RelayCommandSettings):
        hub = urlsplit(os.environ.get("HF_ENDPOINT") or HUB).hostname
        yield f"models that are not on this machine are fetched: from {hub}, or pip's index for pypi: (off: --offline)"

"""Says at the start of a command what leaves this machine by it, and how to turn that off."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from urllib.parse import urlsplit

from parallax_core.base.offline import go_offline, is_offline
from parallax_core.config.join import JoinSettings
from parallax_core.config.server import ServerSettings

HUB = "https://huggingface.co"


def tell_contacts(settings: ServerSettings | JoinSettings, *, listens: bool = False) -> None:
    """Print what leaves this machine, to standard error; with ``offline`` in the settings, have nothing leave it.

    Args:
        settings: of the command.
        listens: whether it is a server where machines join.
    """
    if settings.offline or is_offline():
        go_offline()
        sentences = ["offline: only the addresses that you give, and machines that join, are contacted"]
    elif isinstance(settings, JoinSettings):
        sentences = [*_list_joining(settings), _tell_of_models()]
    else:
        sentences = [*(_list_listening(settings) if listens else ()), _tell_of_models()]
    for sentence in sentences:
        print(f"network: {sentence}", file=sys.stderr, flush=True)


def _list_listening(settings: ServerSettings) -> Iterator[str]:
    if settings.discovery:
        yield "machines on this network that have a code find this server, at UDP port 29753 (off: --no-discovery)"
    if settings.stun_port:
        ports = f"{settings.stun_port} and {settings.stun_port + 1}"
        yield f"who asks is told the address he is seen from, at the ports {ports} (off: --stun-port 0)"


def _list_joining(settings: JoinSettings) -> Iterator[str]:
    if settings.discovery:
        yield "the server is looked for by broadcasts on this network, at UDP port 29753 (off: --no-discovery)"
    yield "links are made to the server, and to the machines that it names"


def _tell_of_models() -> str:
    hub = urlsplit(os.environ.get("HF_ENDPOINT") or HUB).hostname
    return f"models that are not on this machine are fetched: from {hub}, or pip's index for pypi: (off: --offline)"

"""Says at the start of a command what leaves this machine by it, and how to turn that off."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TextIO
from urllib.parse import urlsplit

from parallax_core.base.offline import go_offline, is_offline
from parallax_core.cli.tell import tell
from parallax_core.config.home import told_file

HUB = "https://huggingface.co"
Say = Callable[[str, TextIO | None], None]
"""Prints a line; see `parallax_core.cli.tell.tell`."""
ASKED = 29753
"""The UDP port at which the transports of this project look for servers."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Contacts:
    """What leaves a machine by a command."""

    links: bool = False
    """Whether it links to a server, and to the machines that the server names."""
    seeks: bool = False
    """Whether it looks for others on the local network."""
    is_found: bool = False
    """Whether it is found by others there."""
    stun_port: int = 0
    """Where it tells machines their address; 0: nowhere."""
    fetches: bool = True
    """Whether it may fetch models."""

    def describe(self) -> Iterator[str]:
        """Yield a sentence for each."""
        if self.seeks:
            yield f"others are looked for by broadcasts on this network, to UDP port {ASKED} (off: --no-discovery)"
        if self.is_found:
            yield f"machines on this network that have a code find this one, at UDP port {ASKED} (off: --no-discovery)"
        if self.links:
            yield "links are made to the addresses that you give or a code has, and to machines that are named there"
        if self.stun_port:
            ports = f"{self.stun_port} and {self.stun_port + 1}"
            yield f"machines are told the address they are seen from, at ports {ports} (off: --set stun_port=0)"
        if self.fetches:
            hub = urlsplit(os.environ.get("HF_ENDPOINT") or HUB).hostname
            yield f"models that are not here are fetched: from {hub}, or pip's index for pypi: (off: --offline)"


def tell_contacts(contacts: Contacts, *, offline: bool = False, verbose: bool = False, say: Say = tell) -> None:
    """Print what leaves this machine to standard error, each sentence once on a machine, and always if ``verbose``.

    With ``offline``, this process contacts given addresses only, and says so each time.
    """
    if offline or is_offline():
        go_offline()
        say("network: offline: only the addresses that you give, and machines that join, are contacted", sys.stderr)
        return
    told = _read_told()
    new = [sentence for sentence in contacts.describe() if sentence not in told]
    for sentence in contacts.describe() if verbose else new:
        say(f"network: {sentence}", sys.stderr)
    if new:
        _note_told([*told, *new])


def _read_told() -> list[str]:
    try:
        return told_file().read_text(encoding="utf-8").split("\n")[:-1]
    except (OSError, UnicodeDecodeError):
        return []  # they are told again


def _note_told(sentences: list[str]) -> None:
    with contextlib.suppress(OSError):  # of a full or read-only disk: they are told again
        told_file().parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        told_file().write_text("".join(f"{sentence}\n" for sentence in sentences), encoding="utf-8")

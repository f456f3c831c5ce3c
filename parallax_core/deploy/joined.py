"""Joins a head by a code, and records the heads that this machine has joined."""

from __future__ import annotations

import asyncio
import hashlib
from pathlib import Path

import msgspec

from parallax_core.base.errors import ParallaxError, UsageError
from parallax_core.base.ids import HEAD
from parallax_core.cluster.membership.join_code import is_code, read_code
from parallax_core.config.home import joined_folder
from parallax_core.config.worker import name_node
from parallax_core.deploy.join_codes import get_method
from parallax_core.plugins.host import PluginHost


class JoinedHead(msgspec.Struct, frozen=True, kw_only=True):
    """A head that has admitted this machine's key."""

    transport: str
    address: str
    """The address at which it answered."""
    head: bytes
    """Its description; see `JoinMethod`."""
    machine: str
    """The name by which it knows this machine."""

    @property
    def path(self) -> Path:
        """The file of the record."""
        return joined_folder() / f"{hashlib.sha256(self.head[:32]).hexdigest()[:16]}.json"


def join_head(plugins: PluginHost, where: str) -> tuple[JoinedHead, dict[str, bytes]]:
    """Return the head that ``where``, a code or an address, stands for, and its key by its name.

    With a code, the head admits this machine first.

    Raises:
        UsageError: if it is neither a code nor an address.
        ParallaxError: if the head cannot be reached, refuses, or was not joined by a code before.
    """
    joined = _enrol(plugins, where) if is_code(where.strip()) else _find(where.strip())
    return joined, {HEAD: get_method(plugins, joined.transport).find_key(joined.head)}


def _enrol(plugins: PluginHost, word: str) -> JoinedHead:
    code = read_code(word)
    method = get_method(plugins, code.transport)
    wanted = name_node(0).partition("/")[0]
    enrolment = asyncio.run(method.enrol(code.head, code.secret, wanted))
    address, machine = enrolment.address, enrolment.machine
    joined = JoinedHead(transport=code.transport, address=address, head=code.head, machine=machine)
    joined.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    joined.path.write_bytes(msgspec.json.encode(joined))
    return joined


def _find(address: str) -> JoinedHead:
    """Return the record of the head at an address.

    Raises:
        UsageError: if it is no address.
        ParallaxError: if no head was joined there.
    """
    if "://" not in address:
        raise UsageError(f"{address!r} is neither a join code nor an address", "`parallax codes new` makes a code")
    for path in sorted(joined_folder().glob("*.json")):
        try:
            joined = msgspec.json.decode(path.read_bytes(), type=JoinedHead)
        except (OSError, msgspec.DecodeError):  # damaged
            continue
        if joined.address == address:
            return joined
    message = f"this machine has not joined a server at {address} before"
    raise ParallaxError(message, "the first time a code is needed: `parallax codes new` on the server's machine")

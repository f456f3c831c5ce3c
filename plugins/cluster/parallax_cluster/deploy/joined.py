"""Joins a head by a code, and records the heads that this machine has joined."""

from __future__ import annotations

import hashlib
from pathlib import Path

import msgspec

from parallax_cluster.config.home import joined_folder
from parallax_core.api import ParallaxError, UsageError
from parallax_core.api.node import replace_file


class JoinedHead(msgspec.Struct, frozen=True, kw_only=True):
    """A head that has admitted this machine's key."""

    transport: str
    address: str
    """The address at which it answered last."""
    head: bytes
    """Its description; see `JoinMethod`."""
    machine: str
    """The name by which it knows this machine."""
    others: tuple[str, ...] = ()
    """The addresses of its description."""

    @property
    def name(self) -> str:
        """The name of the file of the record."""
        return f"{hashlib.sha256(self.head[:32]).hexdigest()[:16]}.json"

    def save(self, folder: Path | None = None) -> None:
        """Write the record, among those of the heads that this machine has joined, or to another folder."""
        folder = folder or joined_folder()
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        replace_file(folder / self.name, msgspec.json.encode(self))


def list_joined(folder: Path | None = None) -> list[JoinedHead]:
    """Return the heads that this machine has joined, or those in another folder, the latest first."""
    found: list[tuple[float, JoinedHead]] = []
    for path in (folder or joined_folder()).glob("*.json"):
        try:
            found.append((path.stat().st_mtime, msgspec.json.decode(path.read_bytes(), type=JoinedHead)))
        except (OSError, msgspec.DecodeError):  # damaged
            continue
    return [joined for _, joined in sorted(found, key=lambda each: each[0], reverse=True)]


def find_joined(address: str) -> JoinedHead:
    """Return the record of the head at an address.

    Any address may be that of the only one: whoever answers there has to prove the key of the head that was joined.

    Raises:
        UsageError: if it is no address.
        ParallaxError: if no head was joined, or several were, and none there.
    """
    if "://" not in address:
        hint = "`parallax cluster codes new` on the server's machine makes a code"
        raise UsageError(f"{address!r} is neither a join code nor an address", hint)
    known = list_joined()
    there = [each for each in known if address == each.address] or [each for each in known if address in each.others]
    if not there and len(known) == 1:  # an address of the same kind
        there = [each for each in known if each.address.partition("://")[0] == address.partition("://")[0]]
    if there:
        return msgspec.structs.replace(there[0], address=address)
    message = f"this machine has not joined a server at {address} before"
    places = f", or name one that it has joined: {', '.join(each.address for each in known)}" if known else ""
    raise ParallaxError(message, f"it needs a code: `parallax cluster codes new` on the server's machine{places}")

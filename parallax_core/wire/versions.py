"""The versions of a node, in a layout that no version of the wire format changes.

So two nodes that cannot work together can still tell each other why. `Hello` and `Welcome` begin with the same fields
in every version, and a machine that is admitted by a join code shows `NodeVersions` first.
"""

from __future__ import annotations

import msgspec

from parallax_core.contracts.value import Count
from parallax_core.wire.base import Name

GREETING_TAGS = (5, 6)
"""The tags of `Hello` and `Welcome`."""
FIXED = 128
"""The numbers below this one are a byte each in msgpack."""
SAME_VERSION_HINT = "install the same version of Parallax on every node"


class NodeVersions(msgspec.Struct, frozen=True, array_like=True):
    """The versions of a node. A later version of Parallax may add fields at the end, which are skipped."""

    wire: Count
    """The version of the wire format."""
    software: Name
    """The version of Parallax."""
    pages: Count = 0
    """The version of the rules for counting pages."""


class Greeting(msgspec.Struct, frozen=True, array_like=True):
    """The first fields of a `Hello` or `Welcome` of any version."""

    tag: Count
    wire: Count
    node: Name
    software: Name
    pages: Count = 0


def read_versions(data: bytes) -> NodeVersions:
    """Return the versions that ``data`` stand for.

    Raises:
        ValueError: if they are damaged.
    """
    versions = msgspec.msgpack.decode(data, type=NodeVersions)
    if not versions.software.isprintable():
        raise ValueError("the version of the software has unprintable characters")
    return versions


def write_versions(versions: NodeVersions) -> bytes:
    """Return versions as bytes."""
    return msgspec.msgpack.encode(versions)


def find_tag(header: bytes) -> int | None:
    """Return the tag of the message in a header, of which nothing else is read, or None."""
    first, rest = header[1:2], b""
    if b"\x91" <= first <= b"\x9f":
        rest = header[2:7]
    elif first in {b"\xdc", b"\xdd"}:
        rest = header[4:9] if first == b"\xdc" else header[6:11]
    if not rest:
        return None
    size = {0xCC: 1, 0xCD: 2, 0xCE: 4}.get(rest[0], 0)
    if not size:
        return rest[0] if rest[0] < FIXED else None
    return int.from_bytes(rest[1 : 1 + size], "big") if len(rest) > size else None


def find_versions(header: bytes) -> NodeVersions | None:
    """Return the versions of the sender of a frame, whatever its version; None: its message is no greeting."""
    try:
        greeting = msgspec.msgpack.decode(memoryview(header)[1:], type=Greeting)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    if greeting.tag not in GREETING_TAGS or not greeting.software.isprintable():
        return None
    return NodeVersions(header[0], greeting.software, greeting.pages)


def find_conflict(ours: NodeVersions, theirs: NodeVersions, peer: str, here: str = "this node") -> str:
    """Return why the nodes ``here`` and ``peer`` cannot work together; empty: they can."""
    they, we = f"{peer}, with Parallax {theirs.software},", f"{here}, with Parallax {ours.software},"
    if theirs.wire != ours.wire:
        return f"{they} uses version {theirs.wire} of the wire format, and {we} version {ours.wire}"
    if theirs.pages != ours.pages:
        return f"{they} counts pages by version {theirs.pages} of the rules, and {we} by version {ours.pages}"
    return ""

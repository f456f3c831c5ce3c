"""The versions of this node, and what other nodes are told of them."""

from __future__ import annotations

from functools import cache
from importlib.metadata import version

from parallax_core.base.errors import IncompatibleNode
from parallax_core.pages.version import PAGES_VERSION
from parallax_core.wire.codec import WIRE_VERSION
from parallax_core.wire.versions import SAME_VERSION_HINT, NodeVersions, find_conflict, read_versions, write_versions


@cache
def own_versions() -> NodeVersions:
    """Return the versions of this node. They are searched for on the disk once: each link begins with them."""
    return NodeVersions(WIRE_VERSION, version("parallax-core"), PAGES_VERSION)


def write_own_versions() -> bytes:
    """Return the versions of this node, as a machine shows them that wants to be admitted."""
    return write_versions(own_versions())


def check_machine(versions: bytes) -> None:
    """Check that a machine which is about to be admitted can work with this server; see `Admission.check_versions`.

    Raises:
        IncompatibleNode: if not; its message is for that machine.
        ValueError: if its versions cannot be read.
    """
    if conflict := find_conflict(read_versions(versions), own_versions(), "the server", "the machine"):
        raise IncompatibleNode(conflict, SAME_VERSION_HINT)

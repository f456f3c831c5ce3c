"""Tells a machine from a copy of it with the same keys and name, such as a cloned virtual machine."""

from __future__ import annotations

from collections.abc import Iterable

from parallax_core.base.errors import PeerLost
from parallax_core.base.ids import name_machine
from parallax_core.node.membership.joined_node import JoinedNode
from parallax_core.wire.membership import Join

NAME_HINT = (
    "give it another name (--node), or if it is a copy of that machine, keys of its own: "
    "`parallax keys remove --own default` there, and join by a code"
)


def check_original(name: str, join: Join, joined: Iterable[JoinedNode]) -> None:
    """Check that a node that joins is not of a copy of a machine that has joined.

    Raises:
        PeerLost: if it is; it names both hosts.
    """
    machine = name_machine(name)
    for node in joined:
        other = node.join
        if other.place and join.place and other.place != join.place and name_machine(node.name) == machine:
            places = f"on the host {other.host!r}" if other.host != join.host else "elsewhere"
            message = (
                f"machine {machine!r} has joined {places}, and {name!r}, on {join.host!r}, is another with its keys"
            )
            raise PeerLost(message, NAME_HINT)

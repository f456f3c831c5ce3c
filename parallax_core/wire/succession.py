"""Which coordinator of a cluster counts, and what a standby has to know to take its place.

A coordinator tells each node that has joined its term, and the standbys that may take over (`Succession`). Who has
heard of a newer term answers with that, and leaves. A standby makes a link whose `Hello` says so, and says with a
`Succession` where it would listen; the coordinator sends it the `ClusterState` again and again.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from parallax_core.contracts.value import Count
from parallax_core.wire.checks import check_words
from parallax_core.wire.profile import Peer

MOST_STANDBYS = 16
"""The most standbys of a coordinator."""
MOST_STATE = 2**20
"""The most bytes of the state of a cluster."""


class Succession(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=27):
    """The newest term of a cluster that the sender knows."""

    cluster: Annotated[bytes, msgspec.Meta(max_length=64)]
    """A random number that names the cluster; empty from a standby that does not know it yet."""
    term: Count
    """Counts the coordinators that the cluster has had."""
    heads: Annotated[tuple[Peer, ...], msgspec.Meta(max_length=MOST_STANDBYS)] = ()
    """The coordinators that may follow: their addresses and keys."""


class ClusterState(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=28):
    """What a standby has to know; from its coordinator, whenever something has changed, and else each second."""

    state: Annotated[bytes, msgspec.Meta(max_length=MOST_STATE)]
    """Written by `parallax_core.cluster.membership.standby_state`."""


def check_succession(succession: Succession) -> None:
    """Check the texts of a succession.

    Raises:
        BadFrame: if one has unprintable characters.
    """
    for head in succession.heads:
        check_words(head.node, head.address)

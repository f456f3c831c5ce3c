"""The succession of coordinators: proofs of terms, and the state for a standby to take over.

A coordinator proves its term to each node that has joined, and names the standbys that may take over (`Succession`). A
node that knows a later term answers with the proof of that, and leaves. A standby makes a link whose `Hello` says so,
and says with a `Succession` by which key it would sign, and where it would listen; the coordinator sends it the
`ClusterState` again and again.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

import msgspec

from parallax_cluster.wire.profile import Peer
from parallax_core.api import ServiceMessage, check_words

MOST_STANDBYS = 16
"""The most standbys of a coordinator."""
MOST_PROOF = 2**16
"""The most bytes of the proof of a term."""
MOST_STATE = 2**20
"""The most bytes of the state of a cluster."""


class Succession(ServiceMessage, frozen=True, tag=27):
    """The latest term of a cluster that the sender knows."""

    most_bytes: ClassVar[int] = 2**18

    proof: Annotated[bytes, msgspec.Meta(max_length=MOST_PROOF)]
    """Written by `parallax_cluster.membership.term_proof`; empty: the sender cannot prove the term that it knows.
    From a standby at first: a statement of term 0, signed by the key by which it would take over."""
    heads: Annotated[tuple[Peer, ...], msgspec.Meta(max_length=MOST_STANDBYS)] = ()
    """The coordinators that may follow: their addresses and keys."""

    def check(self) -> None:
        """Check the texts."""
        for head in self.heads:
            check_words(head.node, head.address)


class ClusterState(ServiceMessage, frozen=True, tag=28):
    """What a standby has to know; from its coordinator, whenever something has changed, and else each second."""

    most_bytes: ClassVar[int] = MOST_STATE + 64

    state: Annotated[bytes, msgspec.Meta(max_length=MOST_STATE)]
    """Written by `parallax_cluster.membership.standby_state`."""

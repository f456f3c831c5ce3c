"""The built-in routing policy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from parallax_core.contracts.policy import ArrivalView, ReplicaView


@dataclass(frozen=True, slots=True)
class LeastPendingTokens:
    """Choose the replica with the fewest tokens left to compute."""

    def choose(self, arrival: ArrivalView, replicas: Sequence[ReplicaView]) -> int:
        """Return the rank of the least loaded replica, and among equals the first."""
        del arrival
        return min(replicas, key=_load).rank


def _load(replica: ReplicaView) -> tuple[int, int]:
    return replica.pending_tokens, replica.rank

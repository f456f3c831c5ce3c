"""Routing policies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from parallax_core.api import ArrivalView, ReplicaView


@dataclass(frozen=True, slots=True)
class RoundRobin:
    """Choose one replica after the other, whatever their load."""

    def choose(self, arrival: ArrivalView, replicas: Sequence[ReplicaView]) -> int:
        """Return the rank of the replica whose turn it is."""
        return replicas[arrival.number % len(replicas)].rank


@dataclass(frozen=True, slots=True)
class PrefixAffinity:
    """Choose the replica with most of the prompt cached, unless its load is much higher than another's."""

    slack_tokens: int = 8192
    """The most tokens it may have left to compute beyond the least loaded replica."""

    def __post_init__(self) -> None:
        if self.slack_tokens < 0:
            message = f"slack_tokens is {self.slack_tokens}; it must be 0 or more"
            raise ValueError(message)

    def choose(self, arrival: ArrivalView, replicas: Sequence[ReplicaView]) -> int:
        """Return the rank of the replica with the longest cached prefix, or of the least loaded one."""
        del arrival
        best_cached = min(replicas, key=lambda replica: (-replica.cached_tokens, *_load(replica)))
        least = min(replicas, key=_load)
        is_near = best_cached.pending_tokens <= least.pending_tokens + self.slack_tokens
        return best_cached.rank if is_near else least.rank


def _load(replica: ReplicaView) -> tuple[int, int]:
    return replica.pending_tokens, replica.rank

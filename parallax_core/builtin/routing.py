"""Which replica gets a request: the policies core brings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from parallax_core.contracts.policy import ArrivalView, ReplicaView


@dataclass(frozen=True, slots=True)
class LeastPendingTokens:
    """The replica that has the fewest tokens yet to compute."""

    def choose(self, arrival: ArrivalView, replicas: Sequence[ReplicaView]) -> int:
        """Return the least loaded, and among equals the first."""
        del arrival
        return min(replicas, key=_load).rank


@dataclass(frozen=True, slots=True)
class RoundRobin:
    """One after the other, whatever they have to do."""

    def choose(self, arrival: ArrivalView, replicas: Sequence[ReplicaView]) -> int:
        """Return the one whose turn it is among those there are."""
        return replicas[arrival.number % len(replicas)].rank


@dataclass(frozen=True, slots=True)
class PrefixAffinity:
    """The replica that knows most of the prompt, unless it has much more to do than another."""

    slack_tokens: int = 8192
    """How many more tokens it may have yet to compute than the least loaded replica."""

    def __post_init__(self) -> None:
        if self.slack_tokens < 0:
            message = f"slack_tokens is {self.slack_tokens}, and must be 0 or more"
            raise ValueError(message)

    def choose(self, arrival: ArrivalView, replicas: Sequence[ReplicaView]) -> int:
        """Return the one that knows most, the least loaded of equals; or the least loaded of all."""
        del arrival
        knows_most = min(replicas, key=lambda replica: (-replica.cached_tokens, *_load(replica)))
        least = min(replicas, key=_load)
        is_near = knows_most.pending_tokens <= least.pending_tokens + self.slack_tokens
        return knows_most.rank if is_near else least.rank


def _load(replica: ReplicaView) -> tuple[int, int]:
    return replica.pending_tokens, replica.rank

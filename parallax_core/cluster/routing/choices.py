"""Lists the replicas for a request in the order in which a policy chooses them, for when one refuses it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from parallax_core.contracts.policy import ArrivalView, ReplicaView, RoutingPolicy


def list_choices(policy: RoutingPolicy, arrival: ArrivalView, replicas: Sequence[ReplicaView]) -> Iterator[int]:
    """Yield the rank of the policy's choice, then of its choice among the others, and so on. The policy is asked late.

    Args:
        policy: names one of the replicas that it is given.
        arrival: the request.
        replicas: that may get it.
    """
    left = replicas
    while left:
        rank = policy.choose(arrival, left)
        yield rank
        left = [replica for replica in left if replica.rank != rank]

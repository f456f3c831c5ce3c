"""Lists the replicas for a request in a policy's order, in case one refuses it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from parallax_core.contracts.policy import ArrivalView, ReplicaView, RoutingPolicy


def list_choices(policy: RoutingPolicy, arrival: ArrivalView, replicas: Sequence[ReplicaView]) -> Iterator[int]:
    """Yield the ranks in the policy's order: its choice, then that among the others. The policy is asked lazily.

    Suspected replicas, which have just refused a request or are recovering from a loss, come after all others, whatever
    the policy. Each replica is yielded once, so there is a path as long as there is a replica.

    Args:
        policy: names one of the replicas that it is given.
        arrival: the request.
        replicas: that may get it.
    """
    sound = [replica for replica in replicas if not replica.is_suspected]
    suspected = [replica for replica in replicas if replica.is_suspected]
    for left in (sound, suspected):
        while left:
            rank = policy.choose(arrival, left)
            yield rank
            left = [replica for replica in left if replica.rank != rank]  # noqa: PLW2901 -- what is left of it

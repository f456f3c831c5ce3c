"""Routes requests to pipelines in the proportions of a plan, with any policy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from parallax_core.api import ArrivalView, ReplicaView, RoutingPolicy

LEAST = 0.5
"""The requests that count for a pipeline that gets none by the plan: it is used when others are busier than planned."""


@dataclass(frozen=True, slots=True)
class PlannedRouting:
    """Shows a policy the tokens that pipelines would have, relative to their part of the requests.

    A policy that chooses the fewest then sends requests in these proportions, and a single one to the pipeline that
    has most of them, which is the fastest for it. Where all have the same part, the policy sees what there is.
    """

    policy: RoutingPolicy
    count: Callable[[int], float | None]
    """Returns the requests that the plan gives the pipeline of a rank; None: it is in no plan."""

    def choose(self, arrival: ArrivalView, replicas: Sequence[ReplicaView]) -> int:
        """Return the rank of the policy's choice."""
        found = [self.count(replica.rank) for replica in replicas]
        known = [max(each, LEAST) for each in found if each is not None]
        if len(set(known)) < 2:  # noqa: PLR2004 -- all the same
            return self.policy.choose(arrival, replicas)
        mean, own = sum(known) / len(known), arrival.num_prompt + arrival.max_output
        weights = [1.0 if each is None else max(each, LEAST) / mean for each in found]
        shown = [
            replace(replica, pending_tokens=round((replica.pending_tokens + own) / weight))
            for replica, weight in zip(replicas, weights, strict=True)
        ]
        return self.policy.choose(arrival, shown)

"""The policies of batching, scheduling, preemption and routing that the plugin offers."""

from __future__ import annotations

from parallax_core.api import PolicyKind, PolicySpec, Ref


def _offer(kind: PolicyKind, name: str, factory: str, summary: str) -> PolicySpec:
    return PolicySpec(name=name, kind=kind, summary=summary, factory=Ref(f"parallax_policies.{factory}"))


POLICIES = (
    _offer("batching", "size", "batching:Size", "a step begins when enough requests are ready"),
    _offer("batching", "delay", "batching:Delay", "a step begins when the first request has been ready for a while"),
    _offer(
        "batching",
        "size-or-delay",
        "batching:SizeOrDelay",
        "a step begins at whichever of size and delay comes first",
    ),
    _offer(
        "scheduling",
        "shortest-first",
        "scheduling:ShortestFirst",
        "the prompt with the fewest tokens to compute comes first",
    ),
    _offer(
        "scheduling",
        "fair-by-key",
        "scheduling:FairByKey",
        "API keys, or else addresses, take turns, with equal shares",
    ),
    _offer("preemption", "newest-first", "preemption:NewestFirst", "the newest request is preempted"),
    _offer("preemption", "none", "preemption:NoPreemption", "no request is preempted; one without a free page waits"),
    _offer("routing", "round-robin", "routing:RoundRobin", "one replica after the other"),
    _offer(
        "routing",
        "prefix-affinity",
        "routing:PrefixAffinity",
        "the replica with most of the prompt cached, within bounds",
    ),
    _offer(
        "routing",
        "least-finish-time",
        "least_finish:LeastFinishTime",
        "the replica with the least expected finish, by measured speed, load and cached prompt",
    ),
)

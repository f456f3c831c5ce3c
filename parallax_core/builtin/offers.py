"""The policies and sections of the configuration that core brings, as its plugin offers them."""

from __future__ import annotations

from parallax_core.base.refs import Ref
from parallax_core.contracts.policy import PolicyKind, PolicySpec
from parallax_core.contracts.setting import SettingsSpec


def _offer(kind: PolicyKind, name: str, factory: str, summary: str) -> PolicySpec:
    return PolicySpec(name=name, kind=kind, summary=summary, factory=Ref(f"parallax_core.builtin.{kind}:{factory}"))


POLICIES = (
    _offer("batching", "work-conserving", "WorkConserving", "a step begins whenever the pipeline has room for one"),
    _offer("batching", "immediate", "WorkConserving", "another name for work-conserving: nothing is ever held back"),
    _offer("batching", "size", "Size", "a step begins when enough requests are ready"),
    _offer("batching", "delay", "Delay", "a step begins when the first request has been ready for a while"),
    _offer("batching", "size-or-delay", "SizeOrDelay", "a step begins at whichever of the two comes first"),
    _offer("preemption", "lowest-priority", "LowestPriority", "the least urgent request gives way"),
    _offer("preemption", "newest-first", "NewestFirst", "the newest request gives way"),
    _offer("preemption", "nobody", "Nobody", "who finds no page waits until another has finished"),
    _offer("routing", "least-pending-tokens", "LeastPendingTokens", "the replica with the fewest tokens to compute"),
    _offer("routing", "round-robin", "RoundRobin", "one replica after the other"),
    _offer("routing", "prefix-affinity", "PrefixAffinity", "the replica that knows most of the prompt, within bounds"),
)

SETTINGS = (
    SettingsSpec(
        name="serve",
        summary="the options of parallax serve",
        schema=Ref("parallax_core.config.serve:ServeSettings"),
    ),
    SettingsSpec(
        name="worker",
        summary="the options of parallax worker",
        schema=Ref("parallax_core.config.worker:WorkerSettings"),
    ),
    SettingsSpec(
        name="plugins",
        summary="which plugins are loaded, and which wins",
        schema=Ref("parallax_core.config.plugins:PluginSettings"),
    ),
)
"""The sections of core."""

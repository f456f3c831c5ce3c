"""The built-in plugin's policies, sources, transports, deployments and configuration sections."""

from __future__ import annotations

from parallax_core.base.refs import Ref
from parallax_core.contracts.deployment import DeploymentSpec
from parallax_core.contracts.policy import PolicyKind, PolicySpec
from parallax_core.contracts.setting import SettingsSpec
from parallax_core.contracts.source import SourceSpec
from parallax_core.contracts.transport import TransportSpec


def _offer(kind: PolicyKind, name: str, factory: str, summary: str) -> PolicySpec:
    return PolicySpec(name=name, kind=kind, summary=summary, factory=Ref(f"parallax_core.builtin.{kind}:{factory}"))


POLICIES = (
    _offer("batching", "work-conserving", "WorkConserving", "a step begins whenever the pipeline has room for one"),
    _offer("batching", "immediate", "WorkConserving", "another name for work-conserving: no step is held back"),
    _offer("scheduling", "priority", "PriorityOrder", "prompts come by priority with ageing, then by arrival"),
    _offer("preemption", "lowest-priority", "LowestPriority", "the least urgent request is preempted"),
    _offer("routing", "least-pending-tokens", "LeastPendingTokens", "the replica with the fewest tokens to compute"),
)

SOURCES = (
    SourceSpec(
        name="file",
        summary="a model folder on this machine",
        factory=Ref("parallax_core.builtin.local:LocalSource"),
        takes_paths=True,
    ),
)

TRANSPORTS = (
    TransportSpec(
        name="inprocess",
        summary="nodes of one process",
        factory=Ref("parallax_core.builtin.inprocess:InProcessTransport"),
    ),
)

DEPLOYMENTS = (
    DeploymentSpec(
        name="fixed",
        summary="stages that the user chose, on this machine or on those that join",
        plan=Ref("parallax_core.deploy.kinds:plan_fixed"),
    ),
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
        summary="which plugins are loaded, and which one is preferred",
        schema=Ref("parallax_core.config.plugins:PluginSettings"),
    ),
)
"""The configuration sections of core."""

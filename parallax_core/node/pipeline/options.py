"""How a pipeline is to be run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from parallax_core.builtin.inprocess import SCHEME, InProcessTransport
from parallax_core.contracts.policy import BatchingPolicy, PreemptionPolicy
from parallax_core.contracts.transport import Transport, TransportPlan
from parallax_core.engine.limits import Limits
from parallax_core.node.pipeline.unread import UnreadOutput


@dataclass(frozen=True, kw_only=True, slots=True)
class PipelineOptions:
    """What a pipeline engine is asked to be, beside its stages."""

    limits: Limits = field(default_factory=Limits)
    batching: BatchingPolicy | None = None
    """When a step begins; None: as soon as it can."""
    preemption: PreemptionPolicy | None = None
    """Who gives way when memory runs out; None: the least urgent."""
    transport: Callable[[TransportPlan], Transport] = InProcessTransport
    """What makes the links between head and stages."""
    listen: str = SCHEME
    """Where each stage listens, in the transport's words; it stands for a free place, as port 0 does."""
    heartbeat_s: float | None = 1.0
    """How often stages say that they are alive, and for how long they have computed a step; None: never."""
    step_timeout_s: float | None = None
    """How long a stage may compute a step before it counts as hung; None: as `StepLimit` says."""
    load_timeout_s: float = 900.0
    """How long loading a stage may say nothing of its progress before it counts as hung."""
    backlog: UnreadOutput = field(default_factory=UnreadOutput)
    """What waits to be read by clients; of all engines with this plan together."""

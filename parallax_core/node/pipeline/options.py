"""Holds the options of a pipeline engine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from parallax_core.builtin.batching import WorkConserving
from parallax_core.builtin.inprocess import SCHEME, InProcessTransport
from parallax_core.builtin.preemption import LowestPriority
from parallax_core.builtin.scheduling import PriorityOrder
from parallax_core.contracts.grammar import GrammarCompiler
from parallax_core.contracts.policy import BatchingPolicy, PreemptionPolicy
from parallax_core.contracts.transport import Transport, TransportPlan
from parallax_core.engine.limits import Limits
from parallax_core.engine.options import HeadOptions
from parallax_core.engine.timing import Timer
from parallax_core.node.pipeline.unread import UnreadOutput
from parallax_core.node.policy.guard import SchedulingGuard


@dataclass(frozen=True, kw_only=True, slots=True)
class PipelineOptions:
    """The options of a pipeline engine, apart from its stages."""

    limits: Limits = field(default_factory=Limits)
    batching: BatchingPolicy = field(default_factory=WorkConserving)
    """Decides when a step begins."""
    scheduling: SchedulingGuard = field(default_factory=lambda: SchedulingGuard(PriorityOrder()))
    """Chooses whose prompts are in a step."""
    preemption: PreemptionPolicy = field(default_factory=LowestPriority)
    """Chooses the request to preempt when memory runs out."""
    target_itl_s: float | None = None
    """See `HeadOptions.target_itl_s`."""
    transport: Callable[[TransportPlan], Transport] = InProcessTransport
    """Makes the links between head and stages."""
    listen: str = SCHEME
    """The address where each stage listens; it has to stand for a free address, as port 0 does."""
    heartbeat_s: float | None = 1.0
    """Seconds between the heartbeats of a stage; None: no heartbeats."""
    step_timeout_s: float | None = None
    """Seconds a stage may compute a step before it counts as hung; None: `StepLimit` sets the limit."""
    recovery_timeout_s: float = 120.0
    """Seconds a request waits for lost stages to be replaced before it ends with an error."""
    releases_requests: Callable[[], bool] = lambda: False
    """Returns whether requests end with an error when a stage is lost, so that a router can move them to another
    replica; otherwise they wait for this one."""
    load_timeout_s: float = 900.0
    """Seconds without a progress report after which loading counts as hung."""
    grammars: GrammarCompiler | None = None
    """Compiles the grammars of requests; None: requests with a grammar are refused."""
    backlog: UnreadOutput = field(default_factory=UnreadOutput)
    """Bounds the output that clients have not read; all engines with these options share it."""

    def head_options(self, timer: Timer) -> HeadOptions:
        """Return the options of the engine's head, with a clock in seconds."""
        return HeadOptions(
            limits=self.limits,
            batching=self.batching,
            scheduling=self.scheduling,
            note_scheduling_fault=self.scheduling.report,
            preemption=self.preemption,
            target_itl_s=self.target_itl_s,
            timer=timer,
        )

"""What drives the serving head, routing and pacing in virtual time: the parts that a simulator needs."""

from parallax_core.base.errors import Overloaded
from parallax_core.cluster.routing.choices import list_choices
from parallax_core.cluster.routing.load import ReplicaLoad, RequestLoad
from parallax_core.cluster.routing.prefix_index import ReplicaPrefixIndex, make_keys
from parallax_core.engine.head import Head
from parallax_core.engine.inflight import PlannedStep
from parallax_core.engine.limits import Limits, find_limits
from parallax_core.engine.options import HeadOptions
from parallax_core.engine.pacing import Pacer, PromptBudget, StreamLoad
from parallax_core.engine.stage_clock import FinishedStep, StageClock
from parallax_core.engine.step_cost import StepSize
from parallax_core.node.policy.guard import BatchingGuard, RoutingGuard
from parallax_core.node.policy.parse import make_policy

__all__ = [
    "BatchingGuard",
    "FinishedStep",
    "Head",
    "HeadOptions",
    "Limits",
    "Overloaded",
    "Pacer",
    "PlannedStep",
    "PromptBudget",
    "ReplicaLoad",
    "ReplicaPrefixIndex",
    "RequestLoad",
    "RoutingGuard",
    "StageClock",
    "StepSize",
    "StreamLoad",
    "find_limits",
    "list_choices",
    "make_keys",
    "make_policy",
]

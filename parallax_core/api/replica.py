"""Bases and helpers for kinds of replicas: engines over worker processes, and their streams."""

from parallax_core.base.errors import StageHung
from parallax_core.base.tasks import TASK_ENDINGS, contain_exit
from parallax_core.contracts.engine import MAX_ANSWERS
from parallax_core.contracts.replica import ModelWeights, NodeContext, PreparedModel, ReplicaNode, ReplicaPlan
from parallax_core.contracts.value import Counter
from parallax_core.node.engine_base import EngineBase
from parallax_core.node.executor.load_clock import LOADING_HINT
from parallax_core.node.membership.launch import LOG_HINT
from parallax_core.node.pipeline.stream import QueueStream
from parallax_core.node.pipeline.unread import UnreadOutput
from parallax_core.node.worker.load_progress import LoadProgressReporter
from parallax_core.wire.checks import MOST_PARTS

__all__ = [
    "LOADING_HINT",
    "LOG_HINT",
    "MAX_ANSWERS",
    "MOST_PARTS",
    "TASK_ENDINGS",
    "Counter",
    "EngineBase",
    "LoadProgressReporter",
    "ModelWeights",
    "NodeContext",
    "PreparedModel",
    "QueueStream",
    "ReplicaNode",
    "ReplicaPlan",
    "StageHung",
    "UnreadOutput",
    "contain_exit",
]

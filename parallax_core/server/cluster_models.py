"""What ``GET /v1/cluster`` answers, and how it is made of what an engine says of itself."""

from __future__ import annotations

from typing import Literal

from parallax_core.contracts.status import NodeStatus, ReplicaLimits, ReplicaStatus, StageStatus
from parallax_core.server.response_models import ResponseModel


class PoolReply(ResponseModel):
    """A pool of pages of a stage."""

    kind: str
    """What a page holds: full, window, latent or state."""
    used: int
    """Pages that sequences hold, running or stored."""
    total: int


class StepTimeReply(ResponseModel):
    """How long recent steps took a stage, in seconds, by its own clock."""

    mean: float
    median: float


class StageReply(ResponseModel):
    """A stage, and the node it runs on."""

    stage: int
    """Which of the pipeline, counted from 0."""
    node: str
    host: str | None
    """The machine; null while nobody has the stage."""
    pid: int | None
    """The process; null while nobody has the stage."""
    backend: str | None
    """What runs it; null while that is left to a node which is not there yet."""
    layers: list[int] | None
    """The first, and the one after the last; null until it was loaded."""
    device: str | None
    """In the backend's words; null until it was loaded."""
    dtype: str | None
    """What it computes in; null until it was loaded."""
    weight_bytes: int
    pools: list[PoolReply]
    steps: int
    """Steps it has finished, since the replica began."""
    tokens: int
    """Tokens it has computed, since the replica began."""
    queued: int
    """Steps that were sent to it, and that it has yet to finish."""
    restarts: int
    """How often another process took it over after a loss."""
    step_seconds: StepTimeReply | None
    """Null until it has finished a step."""


class LimitsReply(ResponseModel):
    """How much a replica takes on."""

    max_running: int
    """Answers on its stages at once."""
    max_waiting: int
    """Requests beside them; more get a 429."""
    max_batch_tokens: int
    """Tokens in a step."""


class ReplicaReply(ResponseModel):
    """A replica of the whole model."""

    rank: int
    """Its number, from 0."""
    status: Literal["starting", "ready", "draining", "failed"]
    reason: str
    """Why it is not ready; empty if it is."""
    drained: bool
    """Whether it gets no new requests because somebody said so."""
    requests: int
    """Requests it has not finished."""
    running: int
    """Of these, those that its stages hold a part of."""
    waiting: int
    """And those that wait for their first step, or for another after they gave way."""
    pending_tokens: int
    """Tokens it has yet to compute: prompts it has not answered, and what their answers may still hold."""
    losses: int
    """How often it lost a stage."""
    hop_seconds: float | None
    """What each link takes of a step that has the pipeline to itself, from the head through the stages and back: the
    median of recent ones; null until there was one."""
    limits: LimitsReply | None
    """Null until it was ready once."""
    stages: list[StageReply]


class NodeReply(ResponseModel):
    """A node that has joined, and waits for a stage."""

    node: str
    host: str
    pid: int
    address: str
    """Where other nodes reach it."""
    backends: list[str]
    """Those that run on it, the best first."""


class ClusterReply(ResponseModel):
    """The answer to ``GET /v1/cluster``."""

    object: Literal["cluster"]
    model: str
    status: Literal["starting", "ready", "draining", "failed"]
    reason: str
    """What is wrong, with all or some replicas; empty if nothing is."""
    replicas: list[ReplicaReply]
    waiting: list[NodeReply]
    """Nodes that have joined, and wait for a stage."""


def show_replica(status: ReplicaStatus) -> ReplicaReply:
    """Return how a replica is shown."""
    return ReplicaReply(
        rank=status.rank,
        status=status.health.state,
        reason=status.health.reason,
        drained=status.is_drained,
        requests=status.num_requests,
        running=status.stats.running,
        waiting=status.stats.waiting,
        pending_tokens=status.pending_tokens,
        losses=status.num_losses,
        hop_seconds=status.hop_s,
        limits=_show_limits(status.limits) if status.limits else None,
        stages=[_show_stage(stage) for stage in status.stages],
    )


def show_node(status: NodeStatus) -> NodeReply:
    """Return how a node is shown that waits."""
    return NodeReply(
        node=status.name,
        host=status.host,
        pid=status.pid,
        address=status.address,
        backends=list(status.backends),
    )


def _show_limits(limits: ReplicaLimits) -> LimitsReply:
    return LimitsReply(
        max_running=limits.max_running,
        max_waiting=limits.max_waiting,
        max_batch_tokens=limits.max_batch_tokens,
    )


def _show_stage(status: StageStatus) -> StageReply:
    layers, time = status.layers, status.step_time
    return StageReply(
        stage=status.stage,
        node=status.node,
        host=status.host or None,
        pid=status.pid or None,
        backend=status.backend or None,
        layers=[layers.start, layers.stop] if layers else None,
        device=status.device or None,
        dtype=status.dtype or None,
        weight_bytes=status.weight_bytes,
        pools=[PoolReply(kind=pool.kind, used=pool.used, total=pool.total) for pool in status.pools],
        steps=status.steps,
        tokens=status.tokens,
        queued=status.queued,
        restarts=status.restarts,
        step_seconds=StepTimeReply(mean=time.mean_s, median=time.median_s) if time else None,
    )

"""The schema of ``GET /v1/cluster``, and its conversion from the status of an engine."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from parallax_core.api import HealthState, LinkProfile
from parallax_core.api.deployment import NodeStatus, ReplicaStatus, StageStatus
from parallax_core.api.dialect import ModelState, ResponseModel

NodeState = Literal["serving", "loading", "idle"]


class PoolReply(ResponseModel):
    """A pool of pages of a stage."""

    kind: str
    """The kind of the pages: full, window, latent or state."""
    used: int
    """Pages held by running or cached sequences."""
    total: int


class StepTimeReply(ResponseModel):
    """The seconds a stage took for recent steps, by its own clock."""

    mean: float
    median: float


class StageReply(ResponseModel):
    """A stage, and the node it runs on."""

    stage: int
    """The number of the stage in the pipeline, from 0."""
    node: str
    host: str | None
    """The machine's name; null while no node has the stage."""
    pid: int | None
    """The process id; null while no node has the stage."""
    backend: str | None
    """The backend that runs it; null while the choice is left to a node that has not joined yet."""
    layers: list[int] | None
    """The first layer, and the one after the last; null until the stage is loaded."""
    device: str | None
    """The device, as the backend names it; null until the stage is loaded."""
    dtype: str | None
    """The dtype it computes in; null until the stage is loaded."""
    weight_bytes: int
    pools: list[PoolReply]
    steps: int
    """Steps it has finished since the replica started."""
    tokens: int
    """Tokens it has computed since the replica started."""
    queued: int
    """Steps that were sent to it and are not finished."""
    restarts: int
    """Times another process took it over after a loss."""
    relay: str | None
    """The node that forwards between it and the next stage; null: they are linked directly, or it is the last."""
    weights: str | None
    """The model whose files it has loaded; null: the server has one form of the model."""
    step_seconds: StepTimeReply | None
    """The time per step; null until it has finished one."""


class LimitsReply(ResponseModel):
    """The limits of a replica."""

    max_running: int
    """Answers computed at the same time."""
    max_waiting: int
    """Requests that may wait; further ones get a 429."""
    max_batch_tokens: int
    """Tokens per step."""


class ReplicaReply(ResponseModel):
    """A replica of a whole model."""

    model: str
    rank: int
    """Its number among the replicas of its model, from 0."""
    status: HealthState
    reason: str
    """Why it is not ready; empty if it is."""
    drained: bool
    """Whether an operator drained it, so that it gets no new requests."""
    requests: int
    """Unfinished requests."""
    running: int
    """Of these, the requests with a sequence on the stages."""
    waiting: int
    """Of these, the requests that wait for their first step, or to continue after a preemption."""
    pending_tokens: int
    """Tokens it has yet to compute at most: prompts without an answer so far, and the rest of all answers."""
    losses: int
    """The number of times it lost a stage."""
    hop_seconds: float | None
    """The time of one link (head to stage, stage to stage, stage to head) in a step that is alone in the pipeline: the
    median of recent ones; null until there was one."""
    limits: LimitsReply | None
    """Null until the replica was ready once."""
    stages: list[StageReply]


class SpareReply(ResponseModel):
    """The part of the model that a spare node has loaded, to replace a node that is lost."""

    stage: int
    layers: list[int] | None
    """The first layer, and the one after the last; null: the whole model."""
    loaded: bool
    """Whether the layers are loaded."""


class LinkReply(ResponseModel):
    """A link of a node, as it has measured it."""

    peer: str
    """The node at the other end."""
    round_trip_seconds: float
    """For a small message and its answer."""
    bandwidth: float
    """In bytes per second."""
    relay: str | None
    """The node that forwards between both; null: they are linked directly."""


class ProfileReply(ResponseModel):
    """What a node says of its device and its disk."""

    device: str
    """The product."""
    memory: int
    """Bytes that are free for weights, KV cache and activations."""
    total_memory: int | None
    """Bytes of all its memory; null: unknown."""
    flops: float
    """FLOPs per second."""
    bandwidth: float
    """Bytes of memory read per second."""
    flops_efficiency: float
    """The share of ``flops`` that layers reach."""
    bandwidth_efficiency: float
    """The share of ``bandwidth`` that layers reach."""
    step_seconds: float
    """The fixed time of a step, besides its layers."""
    layer_seconds: float
    """The fixed time of each layer of a step, besides reading and computing."""
    expert_layer_seconds: float
    """The same of a layer with experts; 0: not measured."""
    forms: list[tuple[float, float, float]]
    """What was measured of weights in several forms: the bytes of each, FLOPs and bytes per second."""
    measured: bool
    """Whether the speed was measured on the device; otherwise it is typical of the product."""
    disk_free: int | None
    """Bytes that are free on the disk of its models; null: unknown."""
    disk_bandwidth: float
    """Bytes read from that disk per second."""
    links: list[LinkReply]


class NodeReply(ResponseModel):
    """A node that has joined."""

    node: str
    host: str
    pid: int
    address: str
    """The address where other nodes reach it."""
    backends: list[str]
    """The backends that can run on it, the best first."""
    spare: SpareReply | None
    """What it is a spare for; null: it is no spare."""
    profile: ProfileReply | None
    """Null: it has not reported yet, or cannot."""
    unreached: list[str]
    """The nodes to which it cannot connect, neither directly nor over a relay, as far as that is known."""


class MemberReply(NodeReply):
    """A node that has joined, and what it does."""

    state: NodeState
    """``serving``: it has a stage of a ready replica; ``loading``: of another one; ``idle``: no stage."""
    model: str | None
    """The model of its replica; null without a replica."""
    replica: int | None
    """The rank of its replica; null without a replica."""
    layers: list[int] | None
    """The first layer that it has or is to have, and the one after the last; null: none."""
    idle_reason: str | None
    """Why it is idle; null: it is not, or nothing is known."""
    slowdown: float | None
    """How many times longer than predicted its steps take, as the plan counts with it; null: nothing is planned."""
    labels: dict[str, str]
    """The labels of its machine."""
    versions: dict[str, str]
    """By distribution: its version of core and of each plugin; empty until it has reported."""
    expected_versions: dict[str, str]
    """The versions expected of distributions that differ: the server's, else those of most nodes."""
    drained: bool
    """Whether its machine is drained; it may still have layers, until others have taken them over."""


class LeaseReply(ResponseModel):
    """What a pipeline has of a node that it shares with others."""

    number: int
    """Counts the leases of the node, from 0."""
    holds: list[int]
    """The first layer that the node holds for all of them, and the one after the last."""
    memory_share: float
    """The share of its memory for KV pages."""


class PlannedStageReply(ResponseModel):
    """The layers of a node, as planned."""

    node: str
    layers: list[int]
    """The first layer, and the one after the last."""
    lease: LeaseReply | None
    """Null: the node is in no other pipeline."""


class PredictionReply(ResponseModel):
    """The predicted speed of a replica, or of all, with as many requests at the same time as the plan is for."""

    tokens_per_second: float
    """Output tokens of all requests together."""
    first_token_seconds: float
    token_seconds: float
    """The time of one request per token after its first."""
    requests: int
    """The requests at the same time."""


class PlannedReplicaReply(ResponseModel):
    """A replica, as planned."""

    rank: int
    stages: list[PlannedStageReply]
    predicted: PredictionReply
    limit: str
    """What it would need more of, to be faster."""
    limit_at: str | None
    """The node or link that ``limit`` is about; null: none."""
    measured_token_seconds: float | None
    """The time of a step through all stages and links, from the medians of recent ones; null until there were some."""


class MoveReply(ResponseModel):
    """Layers that are about to move, or are moving, to other nodes."""

    reason: str
    """What has changed in the cluster."""
    bytes: int
    """The bytes of weights to load, of all nodes together."""
    nodes: dict[str, int]
    """These bytes by node."""
    seconds: float
    """The predicted time until the last node has loaded them."""
    replicas: list[int]
    """The ranks of the replicas that still have to move, or are not ready yet; the others serve."""


class PlanReply(ResponseModel):
    """What a server started by `parallax run` has planned."""

    replicas: list[PlannedReplicaReply]
    predicted: PredictionReply | None
    """Of all replicas; null without a plan that serves."""
    waits_for: str | None
    """What is missing for the first replica; null: nothing."""
    join_command: str | None
    """The command by which another machine joins; null: none can, or it is not shown without an API key."""
    term: int | None
    """The number of coordinators that the cluster has had, with this one; null: unknown."""
    standbys: list[str]
    """Those that follow this one, and can take its place."""
    drained: list[str]
    """The machines that get no layers, by name, also those that are not there."""
    move: MoveReply | None
    """What is about to move, or is moving; null: nothing."""


class ClusterModelReply(ResponseModel):
    """A model that the server knows; ``GET /v1/cluster/models`` says more."""

    id: str
    state: ModelState
    error: str | None
    """Why the last attempt to load it failed; null after a success or without an attempt."""


class ClusterReply(ResponseModel, kw_only=True):
    """The answer to ``GET /v1/cluster``."""

    object: Literal["cluster"] = "cluster"
    model: str
    """The model that answers requests which name none; empty: none is loaded."""
    models: list[ClusterModelReply]
    """All models that the server knows, those that answer first."""
    status: HealthState
    reason: str
    """What is wrong with some or all replicas of ``model``; empty if all are ready."""
    replicas: list[ReplicaReply]
    """Of all models that are loaded."""
    waiting: list[NodeReply]
    """The nodes that have joined and wait for a stage."""
    nodes: list[MemberReply]
    """All nodes that have joined, in this order; spares are marked in ``waiting`` only."""
    plan: PlanReply | None
    """Of the replicas of ``model``; null: the user chose the stages."""


def show_replica(status: ReplicaStatus, model: str) -> ReplicaReply:
    """Return the reply for a replica of ``model``."""
    return ReplicaReply(
        model=model,
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
        limits=msgspec.convert(status.limits, LimitsReply, from_attributes=True) if status.limits else None,
        stages=[_show_stage(stage) for stage in status.stages],
    )


def show_node(status: NodeStatus) -> NodeReply:
    """Return the reply for a node."""
    return NodeReply(**describe_node(status))


def describe_node(status: NodeStatus) -> dict[str, Any]:
    """Return the fields of the reply for a node."""
    return {
        "node": status.name,
        "host": status.host,
        "pid": status.pid,
        "address": status.address,
        "backends": list(status.backends),
        "spare": _show_spare(status),
        "profile": _show_profile(status),
        "unreached": sorted(status.unreached),
    }


def _show_profile(status: NodeStatus) -> ProfileReply | None:
    profile = status.profile
    if profile is None:
        return None
    device = profile.device
    return ProfileReply(
        device=device.name,
        memory=device.memory,
        total_memory=device.total_memory or None,
        flops=device.flops,
        bandwidth=device.bandwidth,
        flops_efficiency=device.flops_efficiency,
        bandwidth_efficiency=device.bandwidth_efficiency,
        step_seconds=device.step_s,
        layer_seconds=device.layer_s,
        expert_layer_seconds=device.expert_layer_s,
        forms=list(device.forms),
        measured=device.is_measured,
        disk_free=profile.disk_free or None,
        disk_bandwidth=profile.disk_bandwidth,
        links=[_show_link(link, status.relays.get(link.ends[1])) for link in status.links],
    )


def _show_link(link: LinkProfile, relay: str | None) -> LinkReply:
    return LinkReply(peer=link.ends[1], round_trip_seconds=link.round_trip_s, bandwidth=link.bandwidth, relay=relay)


def _show_spare(status: NodeStatus) -> SpareReply | None:
    if status.stage is None:
        return None
    layers = status.layers
    return SpareReply(
        stage=status.stage, layers=[layers.start, layers.stop] if layers else None, loaded=status.is_loaded
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
        pools=msgspec.convert(status.pools, list[PoolReply], from_attributes=True),
        steps=status.steps,
        tokens=status.tokens,
        queued=status.queued,
        restarts=status.restarts,
        relay=status.relay or None,
        weights=status.weights or None,
        step_seconds=StepTimeReply(mean=time.mean_s, median=time.median_s) if time else None,
    )

"""The status of an engine, for its operators."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol, get_args, runtime_checkable

from parallax_core.base.ids import RequestId
from parallax_core.contracts.engine import EngineStats, Health, Pooling, PoolUse
from parallax_core.contracts.placement import Estimate, LinkProfile, NodeProfile, PipelineEstimate, PlacedStage
from parallax_core.contracts.stage import LayerRange

ModelState = Literal["unloaded", "loading", "ready", "draining"]


@dataclass(frozen=True, kw_only=True, slots=True)
class StepTime:
    """How long a stage took for recent steps with rows, by its own clock, in seconds."""

    mean_s: float
    median_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class StageStatus:
    """One stage of a replica, and the node it runs on."""

    stage: int
    """The index in the pipeline, counted from 0."""
    node: str
    host: str = ""
    """The host name of the machine; empty: no node has the stage."""
    pid: int = 0
    """The process id; 0: no node has the stage."""
    backend: str = ""
    restarts: int = 0
    """The number of times another process took it over after a loss."""
    relay: str = ""
    """The node that forwards between it and the next stage; empty: they are linked directly, or it is the last."""
    weights: str = ""
    """The model whose files it has loaded; empty: the one that was named."""
    layers: LayerRange | None = None
    """None: the stage was never loaded; the fields below are then empty, too."""
    device: str = ""
    dtype: str = ""
    weight_bytes: int = 0
    pools: tuple[PoolUse, ...] = ()
    steps: int = 0
    """Steps with rows finished since the replica started."""
    tokens: int = 0
    """Tokens computed since the replica started."""
    queued: int = 0
    """Steps sent to it that it has not finished."""
    step_time: StepTime | None = None
    """None: it has not finished a step."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ReplicaLimits:
    """The limits of a replica."""

    max_running: int
    """The most answers on its stages at the same time."""
    max_waiting: int
    """The most waiting requests; further ones are refused."""
    max_batch_tokens: int
    """The most tokens in a step."""


@dataclass(frozen=True, slots=True)
class RunningRequest:
    """How far a request is that does not wait any more."""

    id: RequestId
    prompt_tokens: int
    """Tokens of its prompt that are computed, or were found in the cache."""
    output_tokens: int
    """Tokens drawn, of all its answers."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ReplicaStatus:
    """The status of one replica."""

    health: Health
    rank: int = 0
    is_drained: bool = False
    """Whether an operator has drained it, so that it gets no new requests."""
    pending_tokens: int = 0
    """Tokens it has yet to compute: prompts without an answer, and the most that the answers may still need."""
    num_requests: int = 0
    """The number of unfinished requests."""
    stats: EngineStats = field(default_factory=EngineStats)
    num_losses: int = 0
    """The number of times it lost a stage."""
    hop_s: float | None = None
    """The median latency of a link, in seconds: of recent steps that were alone in the pipeline, the round trip minus
    the stages' own time, divided by the number of links. None: there was no such step."""
    limits: ReplicaLimits | None = None
    """None: it was never ready, or they are unknown."""
    takes_grammars: bool = True
    """Whether it takes requests with a grammar; true while that is not known."""
    poolings: tuple[Pooling, ...] = get_args(Pooling)
    """How it makes embeddings; all ways while that is not known."""
    running: tuple[RunningRequest, ...] | None = None
    """The requests on its stages; None: its engine does not tell."""
    stages: tuple[StageStatus, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeStatus:
    """A node that has joined."""

    name: str
    host: str
    pid: int
    address: str
    """The address at which other nodes reach it, in the transport's notation."""
    backends: tuple[str, ...]
    """The backends that run on it, the best first."""
    stage: int | None = None
    """The stage that it is a spare for; None: it is no spare."""
    layers: LayerRange | None = None
    """The layers of a spare; None: the whole model."""
    is_loaded: bool = False
    """Whether a spare has loaded its layers."""
    profile: NodeProfile | None = None
    """What it last said of its device and its disk; None: nothing yet."""
    links: tuple[LinkProfile, ...] = ()
    """Its links to other nodes, as it has measured them: each with this node as its first end."""
    relays: Mapping[str, str] = field(default_factory=dict)
    """By node: the relay over which it reaches that one, if it does so over one."""
    unreached: tuple[str, ...] = ()
    """The nodes to which it could not connect when measuring links."""
    versions: Mapping[str, str] = field(default_factory=dict)
    """By distribution: its version of core and of each plugin; empty until it has reported."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannedReplica:
    """A replica as it is planned."""

    rank: int
    stages: tuple[PlacedStage, ...]
    estimate: PipelineEstimate


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannedMove:
    """Layers that are about to move, or are moving, to other nodes."""

    reason: str
    """What has changed in the cluster."""
    loads: Mapping[str, int]
    """The bytes of weights that nodes must load, by name."""
    load_s: float
    """The predicted seconds until the last node has loaded them."""
    ranks: tuple[int, ...]
    """The replicas that still have to move, or are not ready yet."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PlanStatus:
    """The plan of a cluster that places layers itself, and the next thing it waits for."""

    replicas: tuple[PlannedReplica, ...] = ()
    estimate: Estimate | None = None
    """Of all replicas; None without a plan that serves."""
    idle: Mapping[str, str] = field(default_factory=dict)
    """Why nodes have no layers, by name."""
    waits_for: str = ""
    """What is missing for the first replica; empty: nothing."""
    join_command: str = ""
    """The command by which another machine joins, with its code; empty: none can, or the code is not shown."""
    move: PlannedMove | None = None
    """What is about to move, or is moving; None: nothing."""
    term: int = 0
    """The number of coordinators that the cluster has had, with this one; 0: unknown."""
    standbys: tuple[str, ...] = ()
    """The names of those that may follow it, and are there."""
    unreachable: frozenset[tuple[str, str]] = frozenset()
    """Pairs of nodes: the first cannot connect to the second, so that no pipeline leads from it to that one."""
    drained: frozenset[str] = frozenset()
    """The machines that an operator has drained, by name: they get no layers, also once they join again."""
    slowdowns: Mapping[str, float] = field(default_factory=dict)
    """How many times longer than predicted the steps of each node take, by name; 1 where nothing is known."""


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeProgress:
    """What a node has, or is to have, of a model."""

    node: str
    layers: tuple[int, int]
    """The first layer, and the one after the last."""
    task: str = ""
    """What it does, such as ``loading weights``; empty: it has said nothing, or has the layers."""
    done: int = 0
    total: int | None = None
    """None: unknown."""
    unit: str = "bytes"


@dataclass(frozen=True, kw_only=True, slots=True)
class ServedModel:
    """A model that clients may name."""

    id: str
    names: tuple[str, ...]
    """What clients may call it; the last one is its id."""
    state: ModelState
    error: str = ""
    """Why the last attempt to load it failed; it may have paths of the server in it."""
    replicas: tuple[ReplicaStatus, ...] = ()
    """None unless it is loaded or being loaded."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerStatus:
    """The status of a server. It has a join code and errors in it, which only administrators may see."""

    health: Health
    models: tuple[ServedModel, ...]
    """Those that answer first; the first one answers requests that name none."""
    nodes: tuple[NodeStatus, ...] = ()
    """All that have joined."""
    plan: PlanStatus | None = None
    """None: the user chose the stages."""


@runtime_checkable
class Described(Protocol):
    """An optional protocol of an `Engine` that reports the status of its replicas."""

    def describe(self) -> tuple[ReplicaStatus, ...]:
        """Return the status of each replica, by rank, from memory, without waiting, in any state."""


@runtime_checkable
class Drainable(Protocol):
    """An optional protocol of an `Engine` whose replicas can be drained."""

    def drain(self, rank: int) -> None:
        """Stop giving a replica new requests; it finishes those it has.

        Raises:
            UnknownName: if there is no such replica.
        """

    def readmit(self, rank: int) -> None:
        """Give a drained replica requests again.

        Raises:
            UnknownName: if there is no such replica.
        """

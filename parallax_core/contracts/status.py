"""What an engine says of itself to those who look after it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from parallax_core.contracts.engine import EngineStats, Health, PoolUse
from parallax_core.contracts.stage import LayerRange


@dataclass(frozen=True, kw_only=True, slots=True)
class StepTime:
    """How long recent steps with rows took a stage, by its own clock, in seconds."""

    mean_s: float
    median_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class StageStatus:
    """One stage of a replica, and the node it runs on."""

    stage: int
    """Which of the pipeline, counted from 0."""
    node: str
    host: str = ""
    """The machine; empty: nobody has the stage."""
    pid: int = 0
    """The process; 0: nobody has the stage."""
    backend: str = ""
    restarts: int = 0
    """How often another process took it over after a loss."""
    layers: LayerRange | None = None
    """None, as well as what follows from the model: it was never loaded."""
    device: str = ""
    dtype: str = ""
    weight_bytes: int = 0
    pools: tuple[PoolUse, ...] = ()
    steps: int = 0
    """Steps with rows it has finished since the replica began."""
    tokens: int = 0
    """Tokens it has computed since then."""
    queued: int = 0
    """Steps it has yet to finish that it has been sent."""
    step_time: StepTime | None = None
    """None: it has finished none."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ReplicaLimits:
    """How much a replica takes on."""

    max_running: int
    """Answers on its stages at once."""
    max_waiting: int
    """Requests beside them; more are refused."""
    max_batch_tokens: int
    """Tokens in a step."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ReplicaStatus:
    """One replica."""

    health: Health
    rank: int = 0
    is_drained: bool = False
    """Whether it gets no new requests because somebody said so."""
    pending_tokens: int = 0
    """Tokens it has yet to compute: prompts it has not answered, and what their answers may still hold."""
    num_requests: int = 0
    """Requests it has not finished."""
    stats: EngineStats = field(default_factory=EngineStats)
    num_losses: int = 0
    """How often it lost a stage."""
    hop_s: float | None = None
    """Of a recent step that had the pipeline to itself, what its way from the head through the stages and back took
    beside the stages' own time, by the number of links it passed, in seconds; the median. None: there was none."""
    limits: ReplicaLimits | None = None
    """None: it was never ready, or does not say."""
    stages: tuple[StageStatus, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeStatus:
    """A node that has joined and has nothing to do."""

    name: str
    host: str
    pid: int
    address: str
    """Where other nodes reach it, in the transport's words."""
    backends: tuple[str, ...]
    """Those that run on it, the best first."""


@runtime_checkable
class Described(Protocol):
    """An optional protocol beside `Engine`."""

    def describe(self) -> tuple[ReplicaStatus, ...]:
        """Return one for each replica, by rank; answered from memory, at once, in any state."""


@runtime_checkable
class Drainable(Protocol):
    """An optional protocol beside `Engine`, of those with replicas."""

    def drain(self, rank: int) -> None:
        """Give a replica no new requests; it finishes those it has.

        Raises:
            UnknownName: if there is no such replica.
        """

    def readmit(self, rank: int) -> None:
        """Give a replica requests again.

        Raises:
            UnknownName: if there is no such replica.
        """

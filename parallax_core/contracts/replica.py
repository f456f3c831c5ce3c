"""Kinds of replicas, which serve a whole model in place of core's pipeline of stages.

`BackendSpec.opens` names a kind. Core's own is ``stage``; others come from plugins, by `parallax_register_replicas`. A
kind gives core a `TokenEngine`, as a rule one over a worker process that core starts; core checks the requests, makes
the text of the tokens, routes requests to replicas, and moves those that have not begun.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from parallax_core.base.refs import Ref
from parallax_core.contracts.device import DType
from parallax_core.contracts.node_service import NodeLink, ServiceContext
from parallax_core.contracts.progress import Progress, silent
from parallax_core.contracts.token_engine import TokenEngine


class ReplicaNode(Protocol):
    """The worker process of a replica, on the server's machine; core implements it.

    The process leads a process group, with which its child processes end, and it ends with the server.
    """

    @property
    def name(self) -> str:
        """The name of the node."""

    @property
    def host(self) -> str:
        """The machine of the process that joined last; empty before one has."""

    @property
    def pid(self) -> int:
        """The process that joined last; 0 before one has."""

    async def start(self) -> NodeLink:
        """Start a new process, after killing the one that there is, and return the link to it once it has joined.

        Raises:
            ParallaxError: if it cannot be started, ends, or does not join in time.
        """

    async def explain(self) -> str:
        """Return why the process has ended; empty if it still runs half a second later."""

    async def kill(self) -> None:
        """Kill the process with its child processes, and end the link. Idempotent."""

    async def end(self) -> None:
        """Ask the process to end, kill it if it does not, and end the link. Idempotent."""


class ModelWeights(Protocol):
    """Compares the weights of all replicas of a model with each other and with the server's copy."""

    def begin(self) -> None:
        """Start to read the server's copy in the background."""

    async def check(self, name: str, parts: Mapping[str, str], /) -> None:
        """Check the weights of the replica called ``name``: the digests by part, see `StageInfo.weights_parts`.

        Raises:
            ParallaxError: if some differ; it names the parts.
        """


@dataclass(frozen=True, kw_only=True, slots=True)
class ReplicaPlan:
    """The model of a replica, and its worker. Filled by core from the command line and the configuration."""

    rank: int
    """The number of the replica, from 0."""
    node: ReplicaNode
    """The worker process for it, not started; a kind that needs none leaves it alone."""
    model: str
    """The name by which the worker finds the model; see `NodeContext.prepare_model`."""
    backend: str
    weights: ModelWeights
    backlog: Any
    """An `UnreadOutput` of `parallax_core.api.replica`: it bounds the output that clients have not read."""
    dtype: DType = "auto"
    device: str = ""
    """In the backend's notation; empty: the backend's choice."""
    memory_fraction: float = 0.5
    """The replica's part of the share that KV pages may take of the memory that is free after loading the weights."""
    max_batch_tokens: int = 0
    """The most tokens in a step; 0: the engine's choice."""
    max_running: int = 0
    """The most answers computed at the same time; 0: the engine's choice."""
    status_s: float = 1.0
    """Seconds between two reports of a worker's status."""
    load_timeout_s: float = 900.0
    """Seconds without a progress report after which loading counts as hung."""
    step_timeout_s: float | None = None
    """Seconds without a token, while there are requests, after which the replica counts as hung; None: the kind's."""
    progress: Progress = silent
    """Hears of the loading."""
    on_lost: Callable[[str], None] | None = None
    """To be called with the reason of each loss, after which the replica goes on; None: losses need not be told."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ReplicaSpec:
    """Offers a kind of replicas."""

    name: str
    """The name in `BackendSpec.opens`."""
    summary: str
    """One line for ``parallax plugins``."""
    make: Ref[Callable[[ReplicaPlan], TokenEngine]]
    """Returns the engine of a replica, not started. `Engine.start` has its worker open the model.

    The engine may be `Admitting`, `Measured` and `Described`. When its worker is lost, each request that has begun ends
    with an error, the health is ``starting``, and the engine starts its worker again.
    """
    remedy: str = ""
    """What to do if it cannot be imported, such as the package to install."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PreparedModel:
    """A model that is complete on a node, and the backend that is to open it."""

    name: str
    """The name of the backend."""
    backend: Any
    """What `BackendSpec.factory` has made."""
    folder: Path
    """A complete model folder; see `ModelFolder`."""
    memory_share: float
    """The share of the free memory that the node may use, as its user has limited it; from 0 to 1."""
    listed_weights: Mapping[str, str] = field(default_factory=dict)
    """The digests of the weight files as the model's source lists them."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """The options of the backend, as they are configured on the node."""
    weights_parts: Mapping[str, str] = field(default_factory=dict)
    """The content of the folder, part by part; see `StageInfo.weights_parts`."""


class NodeContext(ServiceContext, Protocol):
    """The node of a service, and the models that it may open; core implements it. Heads have a `ServiceContext`."""

    def prepare_model(self, model: str, backend: str, progress: Progress, /) -> PreparedModel:
        """Find or fetch a model that the head names, and make the backend.

        It waits for disks and networks: call it on a thread.

        Raises:
            ParallaxError: if the model is not allowed on this node, or cannot be fetched, or the backend is missing.
        """

    async def pause(self) -> None:
        """Ask other services to leave the device alone, since a model is about to be loaded."""

"""Starts the worker process of an engine and has it load the engine."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from dataclasses import dataclass

from parallax_core.base.errors import BackendFailed, ParallaxError, PeerLost
from parallax_core.base.ids import Epoch
from parallax_core.contracts.device import DType
from parallax_core.contracts.progress import Progress, silent
from parallax_core.contracts.token_engine import EngineInfo
from parallax_core.node.channel import Channel
from parallax_core.node.executor.base import LEASE, StageLocation
from parallax_core.node.executor.load_clock import LOADING_HINT
from parallax_core.node.executor.weights_check import WeightsCheck
from parallax_core.node.membership.joined_node import JoinedNode
from parallax_core.node.membership.launch import LOG_HINT, find_worker
from parallax_core.node.membership.registry import NodeRegistry
from parallax_core.node.membership.supervisor import WorkerSupervisor
from parallax_core.wire.engine import AssignEngine, EngineOpened, EngineStatus
from parallax_core.wire.membership import Loading, Refusal, Release

logger = logging.getLogger(__name__)

LEAVE_S = 1.0
"""Seconds an engine has to stop before its process is ended."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineAssignment:
    """The engine of a replica, and the options with which its worker process loads it; see `EnginePlan`."""

    node: str
    """The name of the worker process."""
    model: str
    """The name by which the worker finds the model."""
    backend: str
    dtype: DType = "auto"
    device: str = ""
    memory_fraction: float = 0.5
    max_batch_tokens: int = 0
    max_running: int = 0
    status_s: float = 1.0
    """Seconds between two reports of its status."""
    load_timeout_s: float = 900.0
    """Seconds without a progress report after which loading counts as hung."""

    def assign(self, attempt: Epoch) -> AssignEngine:
        """Return the message that assigns the engine, for ``attempt`` at opening it."""
        return AssignEngine(
            LEASE,
            attempt,
            backend=self.backend,
            model=self.model,
            dtype=self.dtype,
            device=self.device,
            memory_fraction=self.memory_fraction,
            status_s=self.status_s,
            max_batch_tokens=self.max_batch_tokens,
            max_running=self.max_running,
        )


@dataclass(frozen=True, slots=True)
class HostedEngine:
    """An engine that is ready in its worker process."""

    channel: Channel
    info: EngineInfo
    attempt: Epoch
    """The epoch of its messages."""


class EngineHost:
    """Opens one engine in a worker process, and again in another process after a loss."""

    def __init__(
        self,
        assignment: EngineAssignment,
        registry: NodeRegistry,
        supervisor: WorkerSupervisor,
        progress: Progress = silent,
        weights: WeightsCheck | None = None,
    ) -> None:
        """``supervisor`` starts the process, which joins ``registry``; its model's weights must pass ``weights``."""
        self._assignment = assignment
        self._registry = registry
        self._supervisor = supervisor
        self._progress = progress
        self._weights = weights or WeightsCheck()
        self._node: JoinedNode | None = None
        self._attempt = Epoch(0)
        self._num_opened = 0

    @property
    def location(self) -> StageLocation:
        """Where the engine runs."""
        node, backend, restarts = self._node, self._assignment.backend, max(0, self._num_opened - 1)
        if node is None:
            return StageLocation(node=self._assignment.node, backend=backend, restarts=restarts)
        return StageLocation(node=node.name, backend=backend, host=node.join.host, pid=node.join.pid, restarts=restarts)

    async def open(self) -> HostedEngine:
        """Start a new process, and load the engine in it.

        Raises:
            ParallaxError: if the process ends, or the engine cannot be loaded; the process is ended then.
        """
        self._attempt = Epoch(self._attempt + 1)
        self._weights.begin()
        try:
            self._node = node = await find_worker(self._registry, self._supervisor, self._assignment.node, self._fit)
            info = await self._load(node)
        except ParallaxError as error:
            end = await self._supervisor.explain(self._assignment.node) if isinstance(error, PeerLost) else None
            await self.abandon()
            hint = LOG_HINT if isinstance(error, PeerLost) else error.hint
            message = f"the engine on node {self._assignment.node!r}: {end or error.message}"
            raise BackendFailed(message, hint) from error
        self._num_opened += 1
        return HostedEngine(node.channel, info, self._attempt)

    async def explain(self, loss: ParallaxError) -> str:
        """Return why the engine was lost: the end of its process says more than the end of its link."""
        end = await self._supervisor.explain(self._assignment.node) if isinstance(loss, PeerLost) else None
        return end or loss.message

    async def abandon(self) -> None:
        """Kill the process with its child processes."""
        node, self._node = self._node, None
        await self._supervisor.kill(self._assignment.node)
        if node is not None:
            await node.channel.leave()

    async def close(self) -> None:
        """Stop the engine, and end its process. Idempotent."""
        node, self._node = self._node, None
        if node is not None:
            with contextlib.suppress(PeerLost, TimeoutError):
                async with asyncio.timeout(LEAVE_S):
                    await node.channel.send(Release(LEASE, self._attempt))
                    await self._wait_stopped(node.channel)
        await self._supervisor.end(self._assignment.node)
        if node is not None:
            await node.channel.leave()

    def _fit(self, node: JoinedNode) -> int:
        return int(node.name == self._assignment.node)

    async def _load(self, node: JoinedNode) -> EngineInfo:
        await node.channel.send(self._assignment.assign(self._attempt))
        while True:
            match await self._receive(node):
                case Loading(_, _, _, task, done, total, unit):
                    self._progress(task, done, None if total < 0 else total, unit)
                case EngineOpened(_, _, info, parts):
                    await self._weights.check(f"the engine on node {node.name!r}", parts)
                    return info
                case Refusal(_, _, _, message, hint):
                    raise ParallaxError(message, hint)
                case message:
                    raise PeerLost(f"node {node.name!r} sent a {type(message).__name__}, which is unexpected here")

    async def _receive(self, node: JoinedNode) -> object:
        limit_s = self._assignment.load_timeout_s
        try:
            async with asyncio.timeout(limit_s):
                return await node.channel.receive()
        except TimeoutError as error:
            raise BackendFailed(f"it has reported no loading progress for {limit_s:g} s", LOADING_HINT) from error

    async def _wait_stopped(self, channel: Channel) -> None:
        """Wait for the status that says that the engine has stopped; what came before it is dropped."""
        while True:
            message = await channel.receive()
            if isinstance(message, EngineStatus) and message.state == "draining":
                return

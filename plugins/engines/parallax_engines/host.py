"""Starts the worker process of an engine and has it load the engine."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass

from parallax_core.api import BackendFailed, EngineInfo, NodeLink, ParallaxError, PeerLost
from parallax_core.api.replica import LOADING_HINT, LOG_HINT, ReplicaPlan
from parallax_engines.messages import (
    ALL,
    AssignEngine,
    EngineLoading,
    EngineOpened,
    EngineRefused,
    EngineStatus,
    StopEngine,
)

LEAVE_S = 1.0
"""Seconds an engine has to stop before its process is ended."""
ANSWER_S = 30.0
"""Seconds a node that has joined may take to begin to load its engine."""
ABSENT_HINT = "install parallax-engines in the environment of the backend, or make that anew: parallax engines install"


@dataclass(frozen=True, slots=True)
class HostedEngine:
    """An engine that is ready in its worker process."""

    link: NodeLink
    info: EngineInfo


class EngineHost:
    """Opens the engine of a replica in a worker process, and again in another process after a loss."""

    def __init__(self, plan: ReplicaPlan) -> None:
        """Open the engine of ``plan``, whose weights must be those of the other replicas."""
        self.plan = plan
        self._num_opened = 0
        self._link: NodeLink | None = None

    @property
    def restarts(self) -> int:
        """How often the engine was opened again."""
        return max(0, self._num_opened - 1)

    async def open(self) -> HostedEngine:
        """Start a new process, and load the engine in it.

        Raises:
            ParallaxError: if the process ends, or the engine cannot be loaded; the process is ended then.
        """
        node = self.plan.node
        self.plan.weights.begin()
        try:
            self._link = link = await node.start()
            info = await self._load(link)
        except ParallaxError as error:
            end = await node.explain() if isinstance(error, PeerLost) else ""
            await self.abandon()
            hint = LOG_HINT if isinstance(error, PeerLost) else error.hint
            raise BackendFailed(f"the engine on node {node.name!r}: {end or error.message}", hint) from error
        self._num_opened += 1
        return HostedEngine(link, info)

    async def explain(self, loss: ParallaxError) -> str:
        """Return why the engine was lost: the end of its process says more than the end of its link."""
        end = await self.plan.node.explain() if isinstance(loss, PeerLost) else ""
        return end or loss.message

    async def abandon(self) -> None:
        """Kill the process with its child processes."""
        self._link = None
        await self.plan.node.kill()

    async def close(self) -> None:
        """Stop the engine, and end its process. Idempotent."""
        link, self._link = self._link, None
        if link is not None:
            with contextlib.suppress(PeerLost, TimeoutError):
                async with asyncio.timeout(LEAVE_S):
                    await link.send(StopEngine())
                    await _wait_stopped(link)
        await self.plan.node.end()

    async def _load(self, link: NodeLink) -> EngineInfo:
        link.learn(ALL)
        await link.send(self._assign())
        limit_s, silence = ANSWER_S, BackendFailed(f"it has not begun to load within {ANSWER_S:g} s", ABSENT_HINT)
        while True:
            try:
                async with asyncio.timeout(limit_s):
                    message = await link.receive()
            except TimeoutError as error:
                raise silence from error
            limit_s = self.plan.load_timeout_s
            silence = BackendFailed(f"it has reported no loading progress for {limit_s:g} s", LOADING_HINT)
            match message:
                case EngineLoading(task, done, total, unit):
                    if task:
                        self.plan.progress(task, done, None if total < 0 else total, unit)
                case EngineOpened(info, parts):
                    await self.plan.weights.check(f"the engine on node {self.plan.node.name!r}", parts)
                    return info
                case EngineRefused(reason, hint):
                    raise ParallaxError(reason, hint)
                case _:
                    name = type(message).__name__
                    raise PeerLost(f"node {link.peer!r} sent a {name}, which is unexpected here")

    def _assign(self) -> AssignEngine:
        plan = self.plan
        return AssignEngine(
            backend=plan.backend,
            model=plan.model,
            dtype=plan.dtype,
            device=plan.device,
            memory_fraction=plan.memory_fraction,
            status_s=plan.status_s,
            max_batch_tokens=plan.max_batch_tokens,
            max_running=plan.max_running,
        )


async def _wait_stopped(link: NodeLink) -> None:
    """Wait for the status that says that the engine has stopped; what came before it is dropped."""
    while True:
        message = await link.receive()
        if isinstance(message, EngineStatus) and message.state == "draining":
            return

"""Engines over a link, with a worker in this process or in one of its own."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from parallax_core.api import Health, PeerLost, Progress, Request, Stream, TransportPlan
from parallax_core.base.errors import StageLost
from parallax_core.builtin.inprocess import InProcessTransport
from parallax_core.contracts.engine import EngineStats
from parallax_core.contracts.progress import silent
from parallax_core.contracts.status import ReplicaStatus
from parallax_core.contracts.token_engine import EngineInfo, TokenEngine
from parallax_core.contracts.transport import Transport
from parallax_core.node.membership.registry import NodeRegistry
from parallax_core.node.membership.supervisor import WorkerSupervisor
from parallax_core.node.pipeline.options import PipelineOptions
from parallax_core.node.whole_model.host import EngineAssignment, EngineHost
from parallax_core.node.whole_model.remote import RemoteEngine
from parallax_core.node.worker.engine_session import OpenedEngine
from parallax_core.node.worker.session import WorkerSession
from parallax_core.testing.node import BACKEND, name_toy, open_toy
from parallax_core.testing.toy import Toy
from parallax_core.wire.engine import AssignEngine
from parallax_core.wire.membership import Join
from parallax_transport_zmq.address import place_local
from parallax_transport_zmq.transport import ZmqTransport
from tests.support.node_services import equip, make_services

NODE = "worker/0/0"


class TaskSupervisor(WorkerSupervisor):
    """Runs workers as tasks of this process in place of processes; `make` gives their engines."""

    def __init__(self, make: Callable[[], TokenEngine]) -> None:
        super().__init__(lambda _: [])
        self.make = make
        self.registry: NodeRegistry | None = None
        self.assigned: list[AssignEngine] = []
        self.ends: list[Exception] = []
        """What ended the workers."""
        self._task: asyncio.Task[None] | None = None
        self._transport: Transport | None = None

    async def restart(self, node: str) -> None:
        await self.kill(node)
        assert self.registry is not None
        self._transport = InProcessTransport(TransportPlan(node=node, listen="inprocess://"))
        await self._transport.start()
        self._task = asyncio.create_task(self._work(self._transport, node, self.registry.address))

    async def kill(self, node: str) -> None:
        del node
        if self._transport is not None:
            await self._transport.stop()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._task = None

    async def wait_end(self, node: str) -> str:
        await asyncio.Event().wait()
        return node

    async def explain(self, node: str) -> str | None:
        return None

    async def end(self, node: str) -> None:
        await self.kill(node)

    async def _work(self, transport: Transport, node: str, address: str) -> None:
        session = WorkerSession(make_services(transport, node), node, open_toy, self._open)
        try:
            await session.serve(address, "head", Join(transport.address, (BACKEND,), "here", 0))
        except (PeerLost, StageLost) as error:
            self.ends.append(error)
        finally:
            await session.close()
            await transport.stop()

    def _open(self, assign: AssignEngine, progress: Progress) -> OpenedEngine:
        self.assigned.append(assign)
        progress("loading", 1, 1)
        return OpenedEngine(self.make(), {})


class LinkedEngine:
    """A `RemoteEngine` and the registry that its worker joins; both start and stop together."""

    def __init__(
        self,
        transport: Transport,
        supervisor: WorkerSupervisor,
        assignment: EngineAssignment,
        options: PipelineOptions | None = None,
        progress: Progress = silent,
    ) -> None:
        self.registry = equip(NodeRegistry(transport, "head"))
        self.supervisor = supervisor
        self.losses: list[str] = []
        self.host = EngineHost(assignment, self.registry, supervisor, progress)
        self.engine = RemoteEngine(self.host, options, self.losses.append)

    async def start(self) -> None:
        await self.registry.start()
        try:
            await self.engine.start()
        except BaseException:
            await self.registry.stop()
            raise

    async def stop(self) -> None:
        await self.engine.stop()
        await self.registry.stop()

    def submit(self, request: Request) -> Stream:
        return self.engine.submit(request)

    def check_room(self) -> None:
        self.engine.check_room()

    def health(self) -> Health:
        return self.engine.health()

    @property
    def info(self) -> EngineInfo:
        return self.engine.info

    def stats(self) -> tuple[EngineStats, ...]:
        return self.engine.stats()

    def describe(self) -> tuple[ReplicaStatus, ...]:
        return self.engine.describe()


def assign(toy: Toy, **fields: Any) -> EngineAssignment:
    """Return the assignment of a toy's engine, with these fields."""
    return EngineAssignment(**{"node": NODE, "model": name_toy(toy), "backend": BACKEND, "status_s": 0.05, **fields})


def link_task(
    make: Callable[[], TokenEngine],
    toy: Toy,
    options: PipelineOptions | None = None,
    progress: Progress = silent,
    **fields: Any,
) -> LinkedEngine:
    """Return the engine that ``make`` gives, behind a link, with its worker in this process; see `assign`."""
    supervisor = TaskSupervisor(make)
    transport = InProcessTransport(TransportPlan(node="head", listen="inprocess://"))
    linked = LinkedEngine(transport, supervisor, assign(toy, **fields), options, progress)
    supervisor.registry = linked.registry
    return linked


class ProcessEngine(LinkedEngine):
    """An engine of a toy in a worker process."""

    def __init__(self, toy: Toy, timeout_s: float = 2.5) -> None:
        self._folder = TemporaryDirectory()
        private = Path(self._folder.name)

        def command(node: str) -> Sequence[str]:
            plan = {
                "node": node,
                "transport": "parallax_transport_zmq.transport:ZmqTransport",
                "connect": self.registry.address,
                "listen": place_local(private, node),
                "timeout_s": timeout_s,
            }
            return [sys.executable, "-m", "parallax_core.testing.node", json.dumps(plan)]

        transport = ZmqTransport(TransportPlan(node="head", listen=place_local(private, "head"), timeout_s=timeout_s))
        super().__init__(transport, WorkerSupervisor(command), assign(toy))

    async def stop(self) -> None:
        await super().stop()
        self._folder.cleanup()

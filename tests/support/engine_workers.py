"""Engines over a link, with a worker in this process or in one of its own."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from parallax_core.api import EnginePlan, Health, Request, Stream, TransportPlan
from parallax_core.contracts.engine import EngineStats
from parallax_core.contracts.replica import ReplicaNode, ReplicaPlan
from parallax_core.contracts.status import ReplicaStatus
from parallax_core.contracts.token_engine import EngineInfo, TokenEngine
from parallax_core.node.executor.weights_check import WeightsCheck
from parallax_core.node.membership.launch import WorkerProcess
from parallax_core.node.membership.registry import NodeRegistry
from parallax_core.node.membership.supervisor import WorkerSupervisor
from parallax_core.node.pipeline.unread import UnreadOutput
from parallax_core.testing.node import name_toy
from parallax_core.testing.replica_kind import BACKEND, NODE, LocalNode
from parallax_core.testing.toy import Toy
from parallax_engines.node_service import EngineService
from parallax_engines.remote import RemoteEngine
from parallax_transport_zmq.address import place_local
from parallax_transport_zmq.transport import ZmqTransport
from tests.support.node_services import equip


class NotedNode(LocalNode):
    """A worker of an engine as a task, which notes for what its backend was asked."""

    def __init__(self, make: Callable[[], TokenEngine]) -> None:
        self.plans: list[EnginePlan] = []
        super().__init__(EngineService, self._open)
        self._make_one = make

    def _open(self, plan: EnginePlan) -> TokenEngine:
        self.plans.append(plan)
        return self._make_one()


class LinkedEngine:
    """A `RemoteEngine` and the registry that its worker joins; both start and stop together."""

    def __init__(self, node: ReplicaNode, registry: NodeRegistry, toy: Toy, **fields: Any) -> None:
        self.node, self.registry = node, registry
        self.losses: list[str] = []
        given = {"weights": WeightsCheck(), "backlog": UnreadOutput(), "status_s": 0.05, **fields}
        plan = ReplicaPlan(rank=0, node=node, model=name_toy(toy), backend=BACKEND, on_lost=self.losses.append, **given)
        self.engine = RemoteEngine(plan)
        self.host = self.engine.host

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


class TaskEngine(LinkedEngine):
    """An engine behind a link, with its worker as a task of this process."""

    node: NotedNode

    def __init__(self, make: Callable[[], TokenEngine], toy: Toy, **fields: Any) -> None:
        node = NotedNode(make)
        super().__init__(node, equip(node.registry), toy, **fields)


def link_task(make: Callable[[], TokenEngine], toy: Toy, **fields: Any) -> TaskEngine:
    """Return the engine that ``make`` gives, behind a link; ``fields`` are of its `ReplicaPlan`."""
    return TaskEngine(make, toy, **fields)


def command_toy(private: Path, address: Callable[[], str], node: str, timeout_s: float = 2.5) -> Sequence[str]:
    """Return the command line of a worker that opens engines of a toy, for the head at ``address``."""
    plan = {
        "node": node,
        "transport": "parallax_transport_zmq.transport:ZmqTransport",
        "connect": address(),
        "listen": place_local(private, node),
        "timeout_s": timeout_s,
        "service": "parallax_engines.node_service:EngineService",
    }
    return [sys.executable, "-m", "parallax_core.testing.node", json.dumps(plan)]


class ProcessEngine(LinkedEngine):
    """An engine of a toy in a worker process."""

    def __init__(self, toy: Toy, timeout_s: float = 2.5) -> None:
        self._folder = TemporaryDirectory()
        private = Path(self._folder.name)
        transport = ZmqTransport(TransportPlan(node="head", listen=place_local(private, "head"), timeout_s=timeout_s))
        registry = equip(NodeRegistry(transport, "head"))
        command = partial(command_toy, private, lambda: registry.address, timeout_s=timeout_s)
        self.supervisor = WorkerSupervisor(command)
        super().__init__(WorkerProcess(NODE, registry, self.supervisor), registry, toy)

    async def stop(self) -> None:
        await super().stop()
        self._folder.cleanup()

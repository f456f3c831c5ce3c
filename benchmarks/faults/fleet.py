"""Worker processes of pipelines, and the router over them, in the process of a scenario."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.processes import is_running
from parallax_core.api import LayerRange, TransportPlan
from parallax_core.builtin.routing import LeastPendingTokens
from parallax_core.node.executor.remote import RemoteExecutor
from parallax_core.node.membership.assignment import StageAssignment
from parallax_core.node.membership.registry import NodeRegistry
from parallax_core.node.membership.spares import SparePool
from parallax_core.node.membership.supervisor import WorkerSupervisor
from parallax_core.node.membership.supply import NodeSupply
from parallax_core.node.pipeline.engine import PipelineEngine
from parallax_core.node.pipeline.options import PipelineOptions
from parallax_core.node.routing.router import Router
from parallax_transport_zmq.address import place_local
from parallax_transport_zmq.transport import ZmqTransport
from tests.support.crowd import now
from tests.support.node_services import equip

TIMEOUT_S = 2.5
"""Seconds of silence after which a worker counts as lost at the latest; the default."""
PATIENCE_S = 120.0
FAILING = frozenset({"memory", "nan"})
"""Faults that end only the requests of a step; no stage is lost."""
TOY_TRANSPORT = "parallax_transport_zmq.transport:ZmqTransport"


@dataclass(frozen=True, kw_only=True, slots=True)
class Formation:
    """Replicas of a pipeline, and their spares."""

    name: str
    sizes: tuple[int, ...]
    """Layers of each stage."""
    replicas: int = 1
    spares: int = 0
    backend: str = "toy"
    pools: tuple[str, ...] = ("full", "window", "state", "full", "window")
    """The pools of the toy's layers."""
    step_timeout_s: float | None = None


@dataclass(slots=True)
class Fault:
    """What happened to a worker, with its times in seconds."""

    kind: str
    stage: int
    at: float
    noticed: float = 0.0
    reason: str = ""
    ready: float = 0.0
    rows: int = 0
    """Rows of the step that failed."""
    ordered: float = 0.0
    """When it was ordered: a client may see a step fail before this process sees that the order is gone."""


class Fleet:
    """The worker processes of a formation, any of which fails when a file orders it (`benchmarks.faults.sabotage`)."""

    def __init__(self, formation: Formation, model: Path | None, private: Path) -> None:
        self.formation, self.private = formation, private
        self._model = str(model) if model else ",".join(formation.pools)
        head = TransportPlan(node="head", listen=place_local(private, "head"), timeout_s=TIMEOUT_S)
        self.registry = equip(NodeRegistry(ZmqTransport(head), "head"))
        self.supervisor = WorkerSupervisor(self._make_command)
        self.spares = SparePool(formation.spares, self.registry, self.supervisor)
        self.faults: list[Fault] = []
        self.pids: set[int] = set()
        self.losses: list[str] = []
        options = PipelineOptions(
            releases_requests=lambda: formation.replicas > 1, step_timeout_s=formation.step_timeout_s
        )
        supply = NodeSupply(self.registry, self.supervisor, self.spares)
        self.engines = [
            PipelineEngine(RemoteExecutor(self._assign(rank), supply), write, options, self._note_loss)
            for rank in range(formation.replicas)
        ]
        self.router = Router(self.engines, LeastPendingTokens(), lambda: self.engines[0].infos[0].context_length)

    def signal(self, engine: PipelineEngine, stage: int, number: signal.Signals) -> None:
        os.kill(engine.locations()[stage].pid, number)

    async def wait_noticed(self, fault: Fault) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not fault.noticed:
                await asyncio.sleep(0.002)
        await self.wait_ready()
        fault.ready = now()

    async def wait_ready(self) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not self._is_ready():
                self.pids.update(self.supervisor.pids)
                await asyncio.sleep(0.005)
        self.pids.update(self.supervisor.pids)

    async def count_used(self) -> int:
        for engine in self.engines:
            engine.drop_stored()
        await asyncio.sleep(1.0)
        for engine in self.engines:
            engine.check()
        return sum(pool.used for engine in self.engines for pool in engine.stats()[0].pools)

    def count_left(self) -> int:
        return sum(map(is_running, self.pids))

    def note(self, reason: str, *, is_loss: bool) -> None:
        if self.faults and is_loss != ((fault := self.faults[-1]).kind in FAILING):
            fault.noticed, fault.reason = fault.noticed or now(), fault.reason or reason

    def _note_loss(self, reason: str) -> None:
        self.losses.append(reason)
        self.note(reason, is_loss=True)

    def _is_ready(self) -> bool:
        assert not any(each.health().state == "failed" for each in self.engines)
        loaded = sum(spare.is_loaded for spare in self.spares.spares)
        return loaded == self.formation.spares and all(each.health().state == "ready" for each in self.engines)

    def _assign(self, rank: int) -> list[StageAssignment]:
        sizes, backend = self.formation.sizes, self.formation.backend
        return [
            StageAssignment(
                stage=stage,
                layers=LayerRange(sum(sizes[:stage]), sum(sizes[: stage + 1])),
                model=self._model,
                backend="" if backend == "toy" else backend,
                dtype="float32",
                memory_fraction=0.03,
                node=f"worker/{rank}/{stage}",
            )
            for stage in range(len(sizes))
        ]

    def _make_command(self, node: str) -> Sequence[str]:
        near, head = place_local(self.private, node), self.registry.address
        command = [sys.executable, "-m", "benchmarks.faults.sabotage", str(self.private)]
        if self.formation.backend == "toy":
            plan = {"node": node, "transport": TOY_TRANSPORT, "connect": head, "listen": near, "timeout_s": TIMEOUT_S}
            return [*command, "toy", json.dumps(plan)]
        command += ["model", "worker", "--supervised", "--transport", "zmq", "--backend", self.formation.backend]
        return [*command, "--connect", head, "--listen", near, "--node", node]


def write(tokens: Sequence[int]) -> str:
    return "x" * len(tokens)


@asynccontextmanager
async def running(fleet: Fleet) -> AsyncIterator[None]:
    await fleet.registry.start()
    try:
        await fleet.router.start()
        await fleet.wait_ready()
        yield
    finally:
        await fleet.router.stop()
        await fleet.spares.stop()
        await fleet.registry.stop()

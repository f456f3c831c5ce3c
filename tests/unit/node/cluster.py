"""Runs a head and the nodes that join it, all in this process, with the toy model."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from itertools import count
from typing import TypeVar

from parallax_cluster.node.profile.reporter import NodeReporter
from parallax_cluster.node.worker.lease_session import LeaseSession
from parallax_cluster.node.worker.leases import NodeLeases
from parallax_cluster.wire.profile import Peer, Peers
from parallax_core.api import (
    Delta,
    Finish,
    LayerRange,
    PeerLost,
    Progress,
    Request,
    RequestId,
    Stage,
    StageBatch,
    StageOutput,
    TransportPlan,
)
from parallax_core.base.errors import StageLost
from parallax_core.builtin.inprocess import InProcessTransport
from parallax_core.contracts.node_service import NodeService
from parallax_core.contracts.progress import silent
from parallax_core.node.channel import Channel
from parallax_core.node.executor.remote import RemoteExecutor
from parallax_core.node.handshake import greet
from parallax_core.node.membership.assignment import StageAssignment
from parallax_core.node.membership.registry import NodeRegistry
from parallax_core.node.membership.supply import NodeSupply
from parallax_core.node.pipeline.engine import PipelineEngine
from parallax_core.node.pipeline.options import PipelineOptions
from parallax_core.node.worker.rejoin import HeadPlace
from parallax_core.node.worker.session import WorkerSession
from parallax_core.node.worker.shared_layers import SharedLayers
from parallax_core.testing.liar import LiarTransport, LiePlan
from parallax_core.testing.node import BACKEND, name_toy, open_toy_layers
from parallax_core.testing.toy import GREEDY, Toy, ToyStage
from parallax_core.wire.membership import Assign, Join
from tests.support.node_services import equip, make_services
from tests.unit.wire.damage import KINDS

T = TypeVar("T")

TOY = Toy(("full", "window", "full"))
MODEL = name_toy(TOY)
AGAIN_S = 0.01
PATIENCE_S = 20.0
NUMBERS = count()
STEP = ToyStage.step


async def soon(work: Awaitable[T]) -> T:
    """Return the result of ``work``; raise TimeoutError after `PATIENCE_S`."""
    async with asyncio.timeout(PATIENCE_S):
        return await work


async def until(condition: Callable[[], bool]) -> None:
    """Wait until ``condition`` is true."""
    async with asyncio.timeout(PATIENCE_S):
        while not condition():  # noqa: ASYNC110 -- there is no event for it
            await asyncio.sleep(0.005)


def step_slowly(stage: ToyStage, batch: StageBatch) -> StageOutput:
    """Compute a step of the toy in 10 ms or more."""
    time.sleep(0.01)
    return STEP(stage, batch)


class Node:
    """A node that joins a head, and joins again whenever the head is lost, until it is killed."""

    def __init__(self, name: str, lies: LiePlan | None = None, backends: tuple[str, ...] = (BACKEND,)) -> None:
        self.name = name
        self.transport = LiarTransport(InProcessTransport(TransportPlan(node=name, listen="inprocess://")), lies)
        self.loads: list[Assign] = []
        """The assignments it was given."""
        self.losses: list[PeerLost] = []
        """Why it lost its head, each time."""
        self.ends: list[StageLost] = []
        """Why a real worker process would have ended and been replaced, each time."""
        self.open: Callable[[Assign, Progress], Stage] = open_toy_layers
        self.has_left = asyncio.Event()
        self.peers: tuple[Peer, ...] = ()
        """The nodes to which the head has introduced it."""
        self.services: list[NodeService] = []
        """Services that it has besides the usual ones."""
        self.max_context: int | None = None
        """The most tokens of a request on it, from its next session on; None: as many as its stage takes."""
        self._backends = backends
        self._address = ""
        self.session: WorkerSession | None = None
        self._task: asyncio.Task[None] | None = None

    async def join(self, address: str, head: str = "head") -> Node:
        """Start the node."""
        self._address = address
        await self.transport.start()
        self._task = asyncio.create_task(self._work(address, head))
        return self

    async def kill(self) -> None:
        """End at once, like a killed process; may be called twice."""
        await self.transport.stop()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def leave(self) -> None:
        """Ask the head to replace this node, which ends once it is released."""
        assert self.session is not None
        self.session.leave()

    def open_stage(self, assign: Assign, progress: Progress) -> Stage:
        self.loads.append(assign)
        return self.open(assign, progress)

    def meet(self, peers: Peers) -> None:
        self.peers = peers.peers

    def make_session(self) -> WorkerSession:
        reporter, layers = NodeReporter(lambda: None), SharedLayers(self.open_stage, self.max_context)
        reporter.meet = self.meet  # type: ignore[method-assign]
        leases = NodeLeases(self.name, partial(self._make_lease, layers))
        services = make_services(self.transport, self.name, [leases, *self.services], reporter)
        return WorkerSession(services, self.name, layers)

    def _make_lease(self, layers: SharedLayers, name: str) -> LeaseSession:
        transport = InProcessTransport(TransportPlan(node=name, listen="inprocess://"))
        join = Join(self.transport.address, self._backends, "here", 0)
        return LeaseSession(make_services(transport, name), layers, HeadPlace(self._address, "head", name), join)

    async def _work(self, address: str, head: str) -> None:
        self.session = session = self.make_session()
        join = Join(self.transport.address, self._backends, "here", 0)
        try:
            while not session.is_leaving:
                try:
                    await session.serve(address, head, join)
                except PeerLost as error:
                    self.losses.append(error)
                except StageLost as error:
                    self.ends.append(error)
                    await session.close()
                    self.session = session = self.make_session()
                await asyncio.sleep(AGAIN_S)
            self.has_left.set()
        finally:
            await session.close()


@asynccontextmanager
async def open_registry(listen: str = "inprocess://", *, measures_links: bool = False) -> AsyncIterator[NodeRegistry]:
    """Run the node registry of a head."""
    transport = InProcessTransport(TransportPlan(node="head", listen=listen))
    registry = equip(NodeRegistry(transport, "head", measures_links=measures_links))
    await registry.start()
    try:
        yield registry
    finally:
        await registry.stop()


@asynccontextmanager
async def joined(registry: NodeRegistry, *nodes: Node) -> AsyncIterator[None]:
    """Let nodes join, and kill them at the end."""
    try:
        for node in nodes:
            await node.join(registry.address)
            await until(lambda node=node: node.name in {joined.name for joined in registry.waiting})  # type: ignore[misc]
        yield
    finally:
        for node in nodes:
            await node.kill()


async def call(registry: NodeRegistry, name: str) -> Channel:
    """Connect to a head and greet it as the node ``name``; return the channel."""
    transport = InProcessTransport(TransportPlan(node=name))
    channel = Channel(await transport.connect(registry.address, "head"))
    channel.learn(KINDS.values())
    await soon(greet(channel, name))
    return channel


def make_roles(num_stages: int = 3, backend: str = "") -> list[StageAssignment]:
    """Return assignments of one layer of the toy each; the last stage has all remaining layers."""
    stops = [*range(1, num_stages), len(TOY.layers)]
    return [
        StageAssignment(stage=stage, layers=LayerRange(stage, stop), model=MODEL, heartbeat_s=0.05, backend=backend)
        for stage, stop in enumerate(stops)
    ]


def make_executor(
    registry: NodeRegistry, num_stages: int = 3, progress: Progress = silent, backend: str = ""
) -> RemoteExecutor:
    return RemoteExecutor(make_roles(num_stages, backend), NodeSupply(registry), progress)


@asynccontextmanager
async def running(
    executor: RemoteExecutor, lost: Callable[[str], None] | None = None, plan: PipelineOptions | None = None
) -> AsyncIterator[PipelineEngine]:
    """Run an engine whose stages are on other nodes."""
    engine = PipelineEngine(executor, lambda tokens: "x" * len(tokens), plan, lost)
    await soon(engine.start())
    try:
        yield engine
    finally:
        await soon(engine.stop())


def ask(prompt: Sequence[int], length: int) -> Request:
    return Request(id=RequestId(str(next(NUMBERS))), prompt=tuple(prompt), max_tokens=length, sampling=GREEDY)


async def answer(engine: PipelineEngine, prompt: Sequence[int], length: int) -> tuple[list[int], Finish]:
    """Send a request, and return its tokens and finish."""
    deltas: list[Delta] = []

    async def read() -> None:
        deltas.extend([delta async for delta in engine.submit(ask(prompt, length))])

    await soon(read())
    assert deltas[-1].finish is not None
    return [token for delta in deltas for token in delta.tokens], deltas[-1].finish


async def check_answer(engine: PipelineEngine, prompt: Sequence[int] = (1, 2, 3), length: int = 12) -> None:
    """Send a request, and compare its tokens with those of the plain toy."""
    tokens, finish = await answer(engine, prompt, length)
    assert (tokens, finish.reason) == (TOY.continuation(prompt, length), "length"), finish.message


async def end(tasks: Sequence[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.gather(*tasks)

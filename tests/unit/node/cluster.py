"""A head and the nodes that join it, all in this process, over a toy."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from itertools import count
from typing import TypeVar

from parallax_core.api import Delta, Finish, LayerRange, PeerLost, Progress, Request, RequestId, Stage, TransportPlan
from parallax_core.base.errors import StageLost
from parallax_core.builtin.inprocess import InProcessTransport
from parallax_core.contracts.progress import silent
from parallax_core.node.channel import Channel
from parallax_core.node.greeting import greet
from parallax_core.node.member import Member
from parallax_core.node.muster import Muster
from parallax_core.node.pipeline import PipelineEngine
from parallax_core.node.plan import PipelinePlan
from parallax_core.node.role import Role
from parallax_core.node.troop import Troop
from parallax_core.testing.liar import LiarTransport, Plot
from parallax_core.testing.node import BACKEND, name_toy, open_toy
from parallax_core.testing.toy import GREEDY, Toy
from parallax_core.wire.membership import Assign, Join

T = TypeVar("T")

TOY = Toy(("full", "window", "full"))
MODEL = name_toy(TOY)
AGAIN_S = 0.01
PATIENCE_S = 20.0
NUMBERS = count()


async def soon(work: Awaitable[T]) -> T:
    """Return what ``work`` gives; a test that waits longer has failed."""
    async with asyncio.timeout(PATIENCE_S):
        return await work


async def until(condition: Callable[[], bool]) -> None:
    """Wait until something is so."""
    async with asyncio.timeout(PATIENCE_S):
        while not condition():  # noqa: ASYNC110 -- what changes is not ours
            await asyncio.sleep(0.005)


class Node:
    """A node that joins a head, and again when that is gone, until it is killed."""

    def __init__(self, name: str, plot: Plot | None = None, backends: tuple[str, ...] = (BACKEND,)) -> None:
        self.name = name
        self.transport = LiarTransport(InProcessTransport(TransportPlan(node=name, listen="inprocess://")), plot)
        self.loads: list[Assign] = []
        """What it was given to load."""
        self.losses: list[PeerLost] = []
        """Why it had no head any more."""
        self.ends: list[StageLost] = []
        """Why its process would have ended, had it had one of its own, and another taken its place."""
        self.open: Callable[[Assign, Progress], Stage] = open_toy
        self._backends = backends
        self._task: asyncio.Task[None] | None = None

    async def join(self, address: str, head: str = "head") -> Node:
        """Begin."""
        await self.transport.start()
        self._task = asyncio.create_task(self._work(address, head))
        return self

    async def kill(self) -> None:
        """End at once, as a process does. Twice is harmless."""
        await self.transport.stop()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def open_stage(self, assign: Assign, progress: Progress) -> Stage:
        self.loads.append(assign)
        return self.open(assign, progress)

    async def _work(self, address: str, head: str) -> None:
        member = Member(self.transport, self.name, self.open_stage)
        join = Join(self.transport.address, self._backends, "here", 0)
        try:
            while True:
                try:
                    await member.serve(address, head, join)
                except PeerLost as error:
                    self.losses.append(error)
                except StageLost as error:
                    self.ends.append(error)
                    await member.close()
                    member = Member(self.transport, self.name, self.open_stage)
                await asyncio.sleep(AGAIN_S)
        finally:
            await member.close()


@asynccontextmanager
async def mustered(listen: str = "inprocess://") -> AsyncIterator[Muster]:
    """Listen as a head."""
    muster = Muster(InProcessTransport(TransportPlan(node="head", listen=listen)), "head")
    await muster.start()
    try:
        yield muster
    finally:
        await muster.stop()


@asynccontextmanager
async def joined(muster: Muster, *nodes: Node) -> AsyncIterator[None]:
    """Have nodes join, and kill them in the end."""
    try:
        for node in nodes:
            await node.join(muster.address)
            await until(lambda node=node: node.name in {recruit.name for recruit in muster.waiting})  # type: ignore[misc]
        yield
    finally:
        for node in nodes:
            await node.kill()


async def call(muster: Muster, name: str) -> Channel:
    """Connect to a head and greet it, as the node called ``name``; what else is said is the test's business."""
    transport = InProcessTransport(TransportPlan(node=name))
    channel = Channel(await transport.connect(muster.address, "head"))
    await soon(greet(channel, name))
    return channel


def make_roles(num_stages: int = 3, backend: str = "") -> list[Role]:
    """Return roles for the layers of the toy, one each; the last has all that are left."""
    stops = [*range(1, num_stages), len(TOY.layers)]
    return [
        Role(stage=stage, layers=LayerRange(stage, stop), model=MODEL, heartbeat_s=0.05, backend=backend)
        for stage, stop in enumerate(stops)
    ]


def make_troop(muster: Muster, num_stages: int = 3, progress: Progress = silent, backend: str = "") -> Troop:
    return Troop(make_roles(num_stages, backend), muster, None, progress)


@asynccontextmanager
async def running(
    troop: Troop, lost: Callable[[str], None] | None = None, plan: PipelinePlan | None = None
) -> AsyncIterator[PipelineEngine]:
    """Run an engine over nodes."""
    engine = PipelineEngine(troop, lambda tokens: "x" * len(tokens), plan, lost)
    await soon(engine.start())
    try:
        yield engine
    finally:
        await soon(engine.stop())


def ask(prompt: Sequence[int], length: int) -> Request:
    return Request(id=RequestId(str(next(NUMBERS))), prompt=tuple(prompt), max_tokens=length, sampling=GREEDY)


async def answer(engine: PipelineEngine, prompt: Sequence[int], length: int) -> tuple[list[int], Finish]:
    """Return the tokens that follow, and how they ended."""
    deltas: list[Delta] = []

    async def read() -> None:
        deltas.extend([delta async for delta in engine.submit(ask(prompt, length))])

    await soon(read())
    assert deltas[-1].finish is not None
    return [token for delta in deltas for token in delta.tokens], deltas[-1].finish


async def check_answer(engine: PipelineEngine, prompt: Sequence[int] = (1, 2, 3), length: int = 12) -> None:
    """Ask, and compare with the toy computed alone."""
    tokens, finish = await answer(engine, prompt, length)
    assert (tokens, finish.reason) == (TOY.continuation(prompt, length), "length"), finish.message


async def end(tasks: Sequence[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.gather(*tasks)

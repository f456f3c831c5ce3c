"""A pipeline of a toy whose stages are processes, for tests and measurements of what ends them."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

from parallax_core.api import Finish, LayerRange, Request, RequestId, TransportPlan, Unavailable
from parallax_core.node.executor.remote import RemoteExecutor
from parallax_core.node.membership.assignment import StageAssignment
from parallax_core.node.membership.registry import NodeRegistry
from parallax_core.node.membership.spares import SparePool
from parallax_core.node.membership.supervisor import WorkerSupervisor
from parallax_core.node.membership.supply import NodeSupply
from parallax_core.node.pipeline.engine import PipelineEngine
from parallax_core.testing.node import name_toy
from parallax_core.testing.toy import GREEDY, Toy
from parallax_transport_zmq.address import place_local
from parallax_transport_zmq.transport import ZmqTransport
from tests.support.node_services import equip

TOY = Toy(("full", "window", "full"))
TIMEOUT_S = 1.0
"""The silence after which a worker of the toy counts as lost."""
PATIENCE_S = 60.0
NUMBERS = count()


@dataclass
class Pipeline:
    """An engine over processes that run a toy."""

    folder: Path
    sizes: Sequence[int] = (1, 1, 1)
    is_tcp: bool = False
    lies: dict[str, dict[str, Any]] = field(default_factory=dict)
    """What nodes say that is not so, by name; the processes that take their place do not."""
    timeout_s: float = TIMEOUT_S
    """The silence after which the transport takes a peer for lost."""
    addresses: dict[str, str] = field(default_factory=dict)
    """The address of the head for a node of this name, if it is not the head's own; processes that follow use that."""
    spares: int = 0

    def __post_init__(self) -> None:
        plan = TransportPlan(node="head", listen=self.place("head"), timeout_s=self.timeout_s)
        self.registry = equip(NodeRegistry(ZmqTransport(plan), "head"))
        self.supervisor = WorkerSupervisor(self.make_command)
        stops = [sum(self.sizes[: index + 1]) for index in range(len(self.sizes))]
        layers = [LayerRange(stop - size, stop) for stop, size in zip(stops, self.sizes, strict=True)]
        roles = [
            StageAssignment(stage=index, layers=each, model=name_toy(TOY), node=f"worker/{index}", heartbeat_s=0.2)
            for index, each in enumerate(layers)
        ]
        self.reasons: list[str] = []
        self.pool = SparePool(self.spares, self.registry, self.supervisor)
        executor = RemoteExecutor(roles, NodeSupply(self.registry, self.supervisor, self.pool))
        self.engine = PipelineEngine(executor, lambda tokens: "x" * len(tokens), on_lost=self.reasons.append)

    def place(self, node: str) -> str:
        return "tcp://127.0.0.1:0" if self.is_tcp else place_local(self.folder, node)

    def make_command(self, node: str) -> list[str]:
        plan = {
            "node": node,
            "transport": "parallax_transport_zmq.transport:ZmqTransport",
            "connect": self.addresses.pop(node, self.registry.address),
            "listen": self.place(node),
            "timeout_s": self.timeout_s,
            **self.lies.pop(node, {}),
        }
        return [sys.executable, "-m", "parallax_core.testing.node", json.dumps(plan)]

    @property
    def pids(self) -> list[int]:
        return [post.pid for post in self.engine.locations()]

    async def ask(self, prompt: Sequence[int], length: int) -> tuple[list[int], Finish]:
        tokens: list[int] = []
        name = RequestId(str(next(NUMBERS)))
        request = Request(id=name, prompt=tuple(prompt), max_tokens=length, sampling=GREEDY)
        async with asyncio.timeout(PATIENCE_S):
            async for delta in self.engine.submit(request):
                tokens += delta.tokens
        assert delta.finish is not None
        return tokens, delta.finish

    async def ask_when_ready(self, prompt: Sequence[int], length: int) -> tuple[list[int], Finish]:
        """Ask again while the engine refuses, as clients do after a 503."""
        while True:
            try:
                return await self.ask(prompt, length)
            except Unavailable:
                await asyncio.sleep(0.02)

    async def check(self) -> None:
        """Ask several things at once, and compare with the toy computed alone."""
        prompts = [[number] * (1 + 7 * number) for number in range(5)]
        answers = await asyncio.gather(*(self.ask(prompt, 20) for prompt in prompts))
        assert [tokens for tokens, _ in answers] == [TOY.continuation(prompt, 20) for prompt in prompts]

    async def check_pages(self) -> None:
        """Check that all pages are free but those that are stored; every stage has confirmed the head's account."""
        self.engine.check()
        self.engine.drop_stored()
        assert {pool.used for pool in self.engine.stats()[0].pools} == {0}

    @property
    def spare_pids(self) -> list[int]:
        return [spare.node.join.pid for spare in self.pool.spares if spare.node is not None]

    async def until_spared(self) -> None:
        """Wait until all spares are loaded."""
        async with asyncio.timeout(PATIENCE_S):
            while sum(spare.is_loaded for spare in self.pool.spares) < self.spares:  # noqa: ASYNC110 -- nobody tells
                await asyncio.sleep(0.01)

    async def until_tokens(self) -> None:
        """Wait until some more tokens are drawn."""
        begun = self.engine.stats()[0].output_tokens
        async with asyncio.timeout(PATIENCE_S):
            while self.engine.stats()[0].output_tokens < begun + 8:  # noqa: ASYNC110 -- nobody tells
                await asyncio.sleep(0.002)

    async def until_lost(self, count: int) -> None:
        """Wait until ``count`` losses were noticed."""
        async with asyncio.timeout(PATIENCE_S):
            while len(self.reasons) < count:  # noqa: ASYNC110 -- nobody tells
                await asyncio.sleep(0.005)

    async def until(self, state: str) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while self.engine.health().state != state:  # noqa: ASYNC110 -- nobody tells
                await asyncio.sleep(0.01)


@asynccontextmanager
async def running(pipeline: Pipeline) -> AsyncIterator[Pipeline]:
    """Listen, and start the processes; in the end none may be left."""
    await pipeline.registry.start()
    try:
        async with serving(pipeline):
            yield pipeline
    finally:
        await pipeline.pool.stop()
        await pipeline.registry.stop()


@asynccontextmanager
async def serving(pipeline: Pipeline) -> AsyncIterator[Pipeline]:
    """Start the processes of a pipeline whose head listens; in the end none may be left."""
    pids: set[int] = set()
    try:
        await pipeline.engine.start()
        pids.update(pipeline.pids)
        yield pipeline
        pids.update(pipeline.pids)
    finally:
        await pipeline.engine.stop()
    assert not [pid for pid in pids if is_alive(pid)]


def is_alive(pid: int) -> bool:
    """Return whether a process is there, and more than an entry that its parent has not looked at."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):  # the latter: it ended after the file was opened
        return False

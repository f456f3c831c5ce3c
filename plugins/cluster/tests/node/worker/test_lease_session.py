"""Leases of a node in this process, and their head, which is the test."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from parallax_cluster.node.worker.lease_session import LeaseSession
from parallax_core.api import LayerRange, ParallaxError, Progress, Stage, TransportPlan, Unsupported
from parallax_core.base.errors import StageHung
from parallax_core.base.ids import Epoch
from parallax_core.builtin.inprocess import InProcessTransport
from parallax_core.contracts.placement import StageLease
from parallax_core.node.channel import Channel
from parallax_core.node.handshake import welcome
from parallax_core.node.membership.assignment import StageAssignment
from parallax_core.node.worker import loaded_stage, rejoin
from parallax_core.node.worker.load_progress import LoadProgressReporter
from parallax_core.node.worker.node_services import NodeServices
from parallax_core.node.worker.rejoin import HeadPlace
from parallax_core.node.worker.shared_layers import SharedLayers
from parallax_core.testing.fault import Fault, FaultStage
from parallax_core.testing.node import open_toy_layers
from parallax_core.wire.membership import Assign, Hop, Join, Leave, Linked, Loading, Ready, Refusal, Release
from parallax_core.wire.messages import Heartbeat, Message, Result, Step
from tests.unit.node.cluster import MODEL, TOY, soon, until
from tests.unit.node.worker.test_session import make_step
from tests.unit.wire.damage import KINDS

ALL = LayerRange(0, len(TOY.layers))
JOIN = Join("inprocess://of the node", ("toy",), "here", 7, model="other", start=1, stop=2, memory=5)


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rejoin, "AGAIN_S", (0.01,))


def assign(share: float = 0.5, epoch: int = 1) -> Assign:
    """Return the assignment of all layers, as a lease."""
    lease = StageLease(1, ALL, share)
    return StageAssignment(stage=0, layers=ALL, model=MODEL, heartbeat_s=10.0, lease=lease).assign(Epoch(epoch))


class Desk:
    """A head, and the leases that join it."""

    def __init__(self) -> None:
        self.transport = InProcessTransport(TransportPlan(node="head", listen="inprocess://"))
        self.loads: list[Assign] = []
        self.open = open_toy_layers
        self.layers = SharedLayers(self.open_stage)
        self.sessions: dict[str, LeaseSession] = {}
        self.tasks: dict[str, asyncio.Task[None]] = {}
        self.channels: dict[str, Channel] = {}
        self.joins: dict[str, Join] = {}

    def open_stage(self, assign: Assign, progress: Progress) -> Stage:
        self.loads.append(assign)
        return self.open(assign, progress)

    def make(self, name: str) -> LeaseSession:
        transport = InProcessTransport(TransportPlan(node=name, listen="inprocess://"))
        place = HeadPlace(self.transport.address, "head", name)
        session = self.sessions[name] = LeaseSession(NodeServices(transport), self.layers, place, JOIN)
        return session

    async def start(self, *names: str) -> None:
        """Have leases join."""
        for name in names:
            self.tasks[name] = asyncio.create_task(self.make(name).run())
            assert await self.accept() == name

    async def accept(self) -> str:
        """Wait until a lease joins, and return its name."""
        channel = Channel(await soon(self.transport.accept()))
        channel.learn(KINDS.values())
        await soon(welcome(channel, "head"))
        join = await soon(channel.receive())
        assert isinstance(join, Join)
        self.channels[channel.peer], self.joins[channel.peer] = channel, join
        return channel.peer

    async def hear(self, name: str) -> Message:
        """Return what a lease says next, its progress and its life signs apart."""
        while isinstance(message := await soon(self.channels[name].receive()), Loading | Heartbeat):
            pass
        return message

    async def load(self, name: str, share: float = 0.5, epoch: int = 1) -> None:
        """Have a lease be the only stage of a pipeline."""
        await self.channels[name].send(assign(share, epoch))
        assert isinstance(await self.hear(name), Ready)
        await self.channels[name].send(Hop(Epoch(epoch), 0, "", "", ""))
        assert isinstance(await self.hear(name), Linked)


@asynccontextmanager
async def desk(*names: str) -> AsyncIterator[Desk]:
    head = Desk()
    await head.transport.start()
    try:
        await head.start(*names)
        yield head
    finally:
        for task in head.tasks.values():
            task.cancel()
        await asyncio.gather(*head.tasks.values(), return_exceptions=True)
        await head.layers.close_unused()
        await head.transport.stop()


async def test_lease_joins_by_itself_with_an_address_of_its_own() -> None:
    async with desk("hub/1~1", "hub/1~2") as head:
        one, two = head.joins["hub/1~1"], head.joins["hub/1~2"]
        assert len({one.address, two.address, JOIN.address}) == 3
        assert (one.backends, one.host, one.pid) == (JOIN.backends, JOIN.host, JOIN.pid)
        assert (one.model, one.start, one.stop) == ("", 0, 0), "the stage of the node is not its own"


async def test_leases_run_steps_on_layers_that_are_loaded_once() -> None:
    async with desk("hub/1~1", "hub/1~2") as head:
        for name in head.sessions:
            assert not head.sessions[name].is_needed
            await head.load(name)
            assert head.sessions[name].is_needed
        assert len(head.loads) == 1
        for name, channel in head.channels.items():
            await channel.send(Step(Epoch(0), 1))
            assert isinstance(await head.hear(name), Result)


async def test_lease_that_loses_its_link_joins_again_and_has_given_its_share_back() -> None:
    async with desk("hub/1~1", "hub/1~2") as head:
        await head.load("hub/1~1", 1.0)
        await head.channels["hub/1~1"].close()
        assert await head.accept() == "hub/1~1"
        assert not head.sessions["hub/1~1"].is_needed
        await head.load("hub/1~2", 1.0)
        assert len(head.loads) == 1, "the layers have stayed"
        join = head.joins["hub/1~1"]
        assert (join.model, join.start, join.stop) == (MODEL, ALL.start, ALL.stop), "it says what the node holds"


@pytest.mark.parametrize("keeps_layers", [False, True])
async def test_lease_that_is_released_returns_its_share_and_keeps_the_layers_if_told(*, keeps_layers: bool) -> None:
    async with desk("hub/1~1", "hub/1~2") as head:
        await head.load("hub/1~1", 0.75)
        await head.load("hub/1~2", 0.25)
        await head.channels["hub/1~2"].send(Release(Epoch(0), keeps_layers=True))
        await head.channels["hub/1~1"].send(Release(Epoch(0), keeps_layers=keeps_layers))
        if not keeps_layers:
            await until(lambda: head.layers.loaded is None)
        await head.load("hub/1~1", 1.0, epoch=2)
        assert len(head.loads) == (1 if keeps_layers else 2)


async def test_layers_are_unloaded_though_another_lease_is_released_a_moment_later() -> None:
    async with desk("hub/1~1", "hub/1~2") as head:
        await head.load("hub/1~1")
        await head.load("hub/1~2")
        await head.channels["hub/1~1"].send(Release(Epoch(0)))
        await until(lambda: not head.sessions["hub/1~1"].is_needed)
        await head.channels["hub/1~2"].send(Release(Epoch(0), keeps_layers=True))
        await until(lambda: head.layers.loaded is None)


async def test_lease_that_ends_leaves_the_layers_to_its_node() -> None:
    async with desk("hub/1~1") as head:
        await head.load("hub/1~1")
        head.tasks["hub/1~1"].cancel()
        await asyncio.gather(head.tasks["hub/1~1"], return_exceptions=True)
        await head.start("hub/1~2")
        await head.load("hub/1~2", 1.0)
        assert len(head.loads) == 1


async def test_load_that_fails_is_refused_and_its_share_is_free_again() -> None:
    def fail(assign: Assign, progress: Progress) -> Stage:
        del assign, progress
        raise ParallaxError("there is too little memory", "close other programs")

    async with desk("hub/1~1", "hub/1~2") as head:
        head.open = fail
        await head.channels["hub/1~1"].send(assign(1.0))
        refusal = await head.hear("hub/1~1")
        assert isinstance(refusal, Refusal)
        assert (refusal.message, refusal.hint) == ("there is too little memory", "close other programs")
        head.open = open_toy_layers
        await head.load("hub/1~2", 1.0)
        assert len(head.loads) == 2


async def test_load_that_is_given_up_returns_its_share_once_it_has_ended() -> None:
    gate = asyncio.Event()
    loop = asyncio.get_running_loop()

    def wait(assign: Assign, progress: Progress) -> Stage:
        asyncio.run_coroutine_threadsafe(gate.wait(), loop).result(20)
        return open_toy_layers(assign, progress)

    async with desk("hub/1~1", "hub/1~2") as head:
        head.open = wait
        await head.channels["hub/1~1"].send(assign(1.0))
        await until(lambda: bool(head.loads))
        head.tasks["hub/1~1"].cancel()
        await asyncio.gather(head.tasks["hub/1~1"], return_exceptions=True)
        loading = asyncio.create_task(head.load("hub/1~2", 1.0))
        await asyncio.sleep(0.05)
        assert not loading.done()
        gate.set()
        await soon(loading)


async def test_load_that_is_given_up_as_it_ends_returns_its_share(monkeypatch: pytest.MonkeyPatch) -> None:
    class Slow(LoadProgressReporter):
        """Takes long to tell the last progress."""

        async def __aexit__(self, *error: object) -> None:
            await asyncio.sleep(20)

    async with desk("hub/1~1", "hub/1~2") as head:
        monkeypatch.setattr(loaded_stage, "LoadProgressReporter", Slow)
        await head.channels["hub/1~1"].send(assign(1.0))
        await until(lambda: head.layers.loaded is not None)
        await asyncio.sleep(0.02)
        head.tasks["hub/1~1"].cancel()
        await asyncio.gather(head.tasks["hub/1~1"], return_exceptions=True)
        monkeypatch.setattr(loaded_stage, "LoadProgressReporter", LoadProgressReporter)
        await head.load("hub/1~2", 1.0)


@pytest.mark.parametrize("is_leased", [True, False])
async def test_refusal_says_whether_only_leases_are_refused(*, is_leased: bool) -> None:
    def refuse(assign: Assign, progress: Progress) -> Stage:
        del assign, progress
        raise Unsupported("the backend does not open such stages")

    async with desk("hub/1~1") as head:
        head.open = refuse
        own = StageAssignment(stage=0, layers=ALL, model=MODEL).assign(Epoch(1))
        await head.channels["hub/1~1"].send(assign() if is_leased else own)
        refusal = await head.hear("hub/1~1")
        assert isinstance(refusal, Refusal)
        assert refusal.lacks_leases == is_leased


async def test_lease_that_leaves_asks_for_a_successor_and_ends_when_it_is_released() -> None:
    async with desk("hub/1~1") as head:
        await head.load("hub/1~1")
        for _ in range(2):
            head.sessions["hub/1~1"].leave()
        assert isinstance(await head.hear("hub/1~1"), Leave)
        assert not head.tasks["hub/1~1"].done()
        await head.channels["hub/1~1"].send(Release(Epoch(0), keeps_layers=True))
        await soon(head.tasks["hub/1~1"])


async def test_lease_that_leaves_before_it_has_joined_says_so_when_it_joins() -> None:
    async with desk() as head:
        session = head.make("hub/1~1")
        session.leave()
        running = head.tasks["hub/1~1"] = asyncio.create_task(session.run())
        assert await head.accept() == "hub/1~1"
        assert isinstance(await head.hear("hub/1~1"), Leave)
        await head.channels["hub/1~1"].send(Release(Epoch(0)))
        await soon(running)


async def test_lease_whose_step_hangs_ends_as_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loaded_stage, "RESET_S", 0.1)
    monkeypatch.setattr(loaded_stage, "CLOSE_S", 0.1)
    stages: list[FaultStage] = []

    class Hanging:
        """Layers whose leases hang in their first step."""

        def __init__(self, holder: Stage) -> None:
            self._holder = holder

        def __getattr__(self, name: str) -> object:
            return getattr(self._holder, name)

        def lease(self, layers: LayerRange, memory_share: float) -> Stage:
            stages.append(FaultStage(self._holder.lease(layers, memory_share), Fault("hang", at=0)))  # type: ignore[attr-defined]
            return stages[-1]

    async with desk("hub/1~1") as head:
        head.open = lambda assign, progress: Hanging(open_toy_layers(assign, progress))  # type: ignore[return-value, assignment]
        await head.load("hub/1~1")
        step = make_step(1)
        await head.channels["hub/1~1"].send(Step(Epoch(0), 1, step.edits, step.rows))
        await until(stages[0].hanging.is_set)
        await head.channels["hub/1~1"].close()
        with pytest.raises(StageHung, match="has computed a step for longer than"):
            await soon(head.tasks["hub/1~1"])
        stages[0].release()

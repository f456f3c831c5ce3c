from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest

from parallax_core.api import (
    Epoch,
    Finish,
    JoinedPeer,
    NodeService,
    ParallaxError,
    Progress,
    Stage,
    Takers,
)
from parallax_core.node.executor.remote import RemoteExecutor
from parallax_core.node.membership.registry import NodeRegistry
from parallax_core.node.membership.spares import SparePool
from parallax_core.node.membership.supply import NodeSupply
from parallax_core.node.pipeline.engine import PipelineEngine
from parallax_core.node.pipeline.options import PipelineOptions
from parallax_core.node.worker.node_services import WorkerService
from parallax_core.testing.node import open_toy
from parallax_core.testing.toy import ToyStage
from parallax_core.wire.membership import Assign, Leave
from tests.unit.node.cluster import (
    TOY,
    Node,
    answer,
    check_answer,
    joined,
    make_executor,
    make_roles,
    open_registry,
    running,
    soon,
    step_slowly,
    until,
)

NAMES = ("attic", "cellar", "kitchen")
PROMPTS = ([1, 2], [3], [5, 6, 7])
LENGTH = 200


@asynccontextmanager
async def three_stages(
    plan: PipelineOptions | None = None, services: Sequence[NodeService] = ()
) -> AsyncIterator[tuple[PipelineEngine, NodeRegistry, list[Node], list[str]]]:
    """Run a pipeline of three stages; yield its engine, its registry, its nodes, and the losses it tells of.

    The second node has further ``services``.
    """
    nodes, reasons = [Node(name) for name in NAMES], list[str]()
    nodes[1].services = [*services]
    async with (
        open_registry() as registry,
        joined(registry, *nodes),
        running(make_executor(registry), reasons.append, plan) as engine,
    ):
        yield engine, registry, nodes, reasons


@asynccontextmanager
async def spared(registry: NodeRegistry, reasons: list[str]) -> AsyncIterator[tuple[PipelineEngine, SparePool]]:
    """Run a pipeline of two stages whose spare has loaded."""
    pool = SparePool(1, registry)
    executor = RemoteExecutor(make_roles(2), NodeSupply(registry, spares=pool))
    try:
        async with running(executor, reasons.append) as engine:
            await until_loaded(pool)
            yield engine, pool
    finally:
        await pool.stop()


async def until_loaded(pool: SparePool) -> None:
    await until(lambda: any(spare.is_loaded for spare in pool.spares))


async def begin(engine: PipelineEngine, length: int = LENGTH) -> list[asyncio.Task[tuple[list[int], Finish]]]:
    """Send requests, and wait until they have tokens."""
    asking = [asyncio.create_task(answer(engine, prompt, length)) for prompt in PROMPTS]
    await until(lambda: engine.stats()[0].output_tokens > len(PROMPTS))
    return asking


async def check(asking: list[asyncio.Task[tuple[list[int], Finish]]], length: int = LENGTH) -> None:
    for prompt, task in zip(PROMPTS, asking, strict=True):
        tokens, finish = await task
        assert (tokens, finish.reason) == (TOY.continuation(prompt, length), "length"), finish.message


@pytest.mark.parametrize("stage", range(2))
async def test_spare_takes_over_from_a_node_that_leaves_without_a_loss(stage: int) -> None:
    nodes, reasons = [Node(name) for name in (*NAMES[:2], "spare")], list[str]()
    async with (
        open_registry() as registry,
        joined(registry, *nodes),
        spared(registry, reasons) as (engine, pool),
    ):
        pool.cover(engine, {each: 1 + (each.stage == stage) for each in make_roles(2)})
        asking = await begin(engine)
        nodes[stage].leave()
        while not nodes[stage].has_left.is_set():
            assert engine.health().state == "ready"
            await check_answer(engine, length=2)
        assert [location.node for location in engine.locations()][stage] == "spare"
        await check(asking)
        assert (reasons, engine.health().reason, engine.describe()[0].num_losses) == ([], "", 0)


async def test_node_that_leaves_may_come_back_and_be_the_next_spare() -> None:
    nodes, reasons = [Node(name) for name in NAMES], list[str]()
    async with open_registry() as registry, joined(registry, *nodes), spared(registry, reasons) as (engine, pool):
        asking = await begin(engine)
        for number in range(6):
            await until_loaded(pool)
            name = engine.locations()[number % 2].node
            leaver = next(node for node in nodes if node.name == name)
            leaver.leave()
            await soon(leaver.has_left.wait())
            await leaver.kill()
            nodes.remove(leaver)
            nodes.append(await Node(name).join(registry.address))
        await check(asking)
        await check_answer(engine)
        assert reasons == []
        for node in nodes:
            await node.kill()


async def test_next_node_that_joins_takes_over() -> None:
    async with three_stages() as (engine, registry, nodes, reasons):
        asking = await begin(engine)
        nodes[1].leave()
        await until(lambda: engine.health().reason == "node 'cellar' leaves, and stage 1 waits for another one")
        heir = await Node("heir").join(registry.address)
        await soon(nodes[1].has_left.wait())
        await check(asking)
        assert [location.node for location in engine.locations()] == ["attic", "heir", "kitchen"]
        assert ([len(node.loads) for node in (*nodes, heir)], reasons) == ([1, 1, 1, 1], [])
        await heir.kill()


class Talker(WorkerService):
    """Has a node tell its head anything."""

    @asynccontextmanager
    async def joined(self, peer: JoinedPeer) -> AsyncIterator[Takers]:
        self.tell = peer.channel.send
        yield {}


async def test_node_that_reports_again_and_again_gets_one_successor() -> None:
    async with three_stages(services=(talker := Talker(),)) as (engine, registry, _, _):
        asking = await begin(engine)
        for _ in range(100):
            await talker.tell(Leave(Epoch(0)))
        await until(lambda: "leaves" in engine.health().reason)
        heirs = [await Node(name).join(registry.address) for name in ("first", "second")]
        await check(asking)
        assert sum(len(heir.loads) for heir in heirs) == 1
        for heir in heirs:
            await heir.kill()


async def test_node_without_a_successor_stays_until_the_requests_have_ended() -> None:
    async with three_stages() as (engine, registry, nodes, reasons):
        asking = await begin(engine)
        nodes[1].leave()
        await check(asking)
        assert reasons == []
        await soon(nodes[1].has_left.wait())
        reason = "stage 1 of 3, on node 'cellar', is lost: it leaves, and no other node has its layers"
        assert reasons == [f"a stage was lost, and is being replaced: {reason}"]
        heir = await Node("heir").join(registry.address)
        await until(lambda: engine.health().state == "ready")
        await check_answer(engine)
        await heir.kill()


async def test_requests_that_can_move_do_not_wait_for_a_successor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ToyStage, "step", step_slowly)  # so that no answer is complete when the node leaves
    async with three_stages(PipelineOptions(releases_requests=lambda: True)) as (engine, _, nodes, _):
        asking = await begin(engine)
        nodes[0].leave()
        ends = [await task for task in asking]
        assert {finish.reason for _, finish in ends} == {"error"}
        await soon(nodes[0].has_left.wait())


async def test_node_stays_for_requests_that_can_move_no_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ToyStage, "step", step_slowly)
    has_others = [True]
    async with three_stages(PipelineOptions(releases_requests=lambda: has_others[0])) as (engine, _, nodes, reasons):
        asking = await begin(engine, 40)
        has_others[0] = False
        nodes[0].leave()
        await check(asking, 40)
        assert reasons == []


@pytest.mark.parametrize("error", [ParallaxError("there is too little memory"), RuntimeError("no such kernel")])
async def test_node_that_cannot_take_over_harms_no_request(error: Exception) -> None:
    def refuse(assign: Assign, progress: Progress) -> Stage:
        del assign, progress
        raise error

    async with three_stages() as (engine, registry, nodes, _):
        asking = await begin(engine)
        heir = Node("heir")
        heir.open = refuse
        await heir.join(registry.address)
        nodes[2].leave()
        await check(asking)
        await heir.kill()


async def test_node_that_ends_before_its_successor_has_loaded_is_replaced_by_it() -> None:
    go = threading.Event()

    def open_slowly(assign: Assign, progress: Progress) -> Stage:
        go.wait()
        return open_toy(assign, progress)

    async with three_stages() as (engine, registry, nodes, reasons):
        asking = await begin(engine)
        heir = Node("heir")
        heir.open = open_slowly
        await heir.join(registry.address)
        nodes[2].leave()
        await until(lambda: bool(heir.loads))
        await nodes[2].kill()
        await until(lambda: bool(reasons))
        go.set()
        await check(asking)
        assert [len(node.loads) for node in (*nodes, heir)] == [1, 1, 1, 1]
        await heir.kill()


async def test_nodes_may_leave_together_and_another_be_lost_meanwhile() -> None:
    async with three_stages() as (engine, registry, nodes, _):
        asking = await begin(engine)
        nodes[0].leave()
        nodes[1].leave()
        await until(lambda: "leaves" in engine.health().reason)
        await nodes[2].kill()
        heirs = [await Node(name).join(registry.address) for name in ("first", "second", "third")]
        for node in nodes[:2]:
            await soon(node.has_left.wait())
        await check(asking)
        await check_answer(engine)
        assert {location.node for location in engine.locations()} == {"first", "second", "third"}
        for node in heirs:
            await node.kill()

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from parallax_core.api import LayerRange, Progress, Stage
from parallax_core.node.executor.remote import RemoteExecutor
from parallax_core.node.executor.weights_check import WeightsCheck
from parallax_core.node.membership.assignment import StageAssignment
from parallax_core.node.membership.registry import NodeRegistry
from parallax_core.node.membership.spares import SparePool
from parallax_core.node.membership.supply import NodeSupply
from parallax_core.node.pipeline.engine import PipelineEngine
from parallax_core.node.status import describe_spares
from parallax_core.testing.node import open_toy
from parallax_core.wire.membership import Assign
from tests.unit.node.cluster import (
    TOY,
    Node,
    answer,
    check_answer,
    joined,
    make_roles,
    open_registry,
    running,
    until,
)

NAMES = ("attic", "cellar", "kitchen")


@asynccontextmanager
async def open_pool(size: int, registry: NodeRegistry, weights: WeightsCheck | None = None) -> AsyncIterator[SparePool]:
    pool = SparePool(size, registry, weights=weights)
    try:
        yield pool
    finally:
        await pool.stop()


def make_executor(pool: SparePool, registry: NodeRegistry, num_stages: int = 3) -> RemoteExecutor:
    return RemoteExecutor(make_roles(num_stages), NodeSupply(registry, spares=pool))


async def lose(node: Node, engine: PipelineEngine) -> None:
    """Kill a node, and wait until its pipeline serves again."""
    before = engine.describe()[0].num_losses
    await node.kill()
    await until(lambda: engine.describe()[0].num_losses > before and engine.health().state == "ready")


def count_loaded(pool: SparePool) -> int:
    return sum(spare.is_loaded for spare in pool.spares)


def list_stages(nodes: Sequence[Node]) -> list[list[int]]:
    return [[load.stage for load in node.loads] for node in nodes]


async def test_spare_replaces_a_lost_node_without_loading_again() -> None:
    nodes, reasons = [Node(name) for name in (*NAMES, "spare")], list[str]()
    async with (
        open_registry() as registry,
        joined(registry, *nodes),
        open_pool(1, registry) as pool,
        running(make_executor(pool, registry), reasons.append) as engine,
    ):
        await until(lambda: count_loaded(pool) == 1)
        [status] = describe_spares(pool.spares)
        assert (status.name, status.stage, status.layers, status.is_loaded) == ("spare", 0, LayerRange(0, 1), True)
        asking = asyncio.create_task(answer(engine, (1, 2), 200))
        await until(lambda: bool(engine.stats()[0].output_tokens))
        await nodes[0].kill()
        tokens, finish = await asking
        assert (tokens, finish.reason) == (TOY.continuation((1, 2), 200), "length")
        assert [location.node for location in engine.locations()] == ["spare", *NAMES[1:]]
        assert list_stages(nodes) == [[0], [1], [2], [0]]
        assert len(reasons) == 1


async def test_used_spare_is_followed_by_another() -> None:
    nodes = [Node(name) for name in (*NAMES, "first", "second")]
    async with (
        open_registry() as registry,
        joined(registry, *nodes),
        open_pool(1, registry) as pool,
        running(make_executor(pool, registry)) as engine,
    ):
        for lost in (nodes[0], nodes[3]):
            await until(lambda: count_loaded(pool) == 1)
            await lose(lost, engine)
            await check_answer(engine)
        assert [location.node for location in engine.locations()] == ["second", *NAMES[1:]]
        assert list_stages(nodes[3:]) == [[0], [0]]


async def test_spare_for_another_stage_replaces_a_lost_node_that_an_operator_would_have_to_replace() -> None:
    nodes = [Node(name) for name in (*NAMES, "spare")]
    async with (
        open_registry() as registry,
        joined(registry, *nodes),
        open_pool(1, registry) as pool,
        running(make_executor(pool, registry)) as engine,
    ):
        await until(lambda: count_loaded(pool) == 1)
        await lose(nodes[2], engine)
        await check_answer(engine)
        assert list_stages(nodes)[3] == [0, 2]


async def test_node_goes_to_a_stage_that_waits_before_a_spare() -> None:
    """Although the spare has waited for longer."""
    nodes = [Node(name) for name in NAMES]
    async with (
        open_registry() as registry,
        joined(registry, *nodes),
        open_pool(1, registry) as pool,
        running(make_executor(pool, registry)) as engine,
    ):
        await until(lambda: len(pool.spares) == 1)
        await nodes[1].kill()
        await until(lambda: engine.health().state == "starting")
        heir = await Node("heir").join(registry.address)
        await until(lambda: engine.health().state == "ready")
        await check_answer(engine)
        assert (list_stages([heir]), count_loaded(pool)) == ([[1]], 0)
        await heir.kill()


async def test_spare_that_still_loads_is_used_when_it_has_loaded() -> None:
    go = threading.Event()

    def open_slowly(assign: Assign, progress: Progress) -> Stage:
        go.wait()
        return open_toy(assign, progress)

    nodes = [Node(name) for name in (*NAMES, "spare")]
    nodes[3].open = open_slowly
    async with (
        open_registry() as registry,
        joined(registry, *nodes),
        open_pool(1, registry) as pool,
        running(make_executor(pool, registry)) as engine,
    ):
        await until(lambda: bool(nodes[3].loads))
        await nodes[0].kill()
        await until(lambda: engine.health().state == "starting")
        go.set()
        await until(lambda: engine.health().state == "ready")
        await check_answer(engine)
        assert list_stages(nodes) == [[0], [1], [2], [0]]


async def test_lost_spare_is_replaced() -> None:
    nodes = [Node(name) for name in (*NAMES, "first", "second")]
    async with (
        open_registry() as registry,
        joined(registry, *nodes),
        open_pool(1, registry) as pool,
        running(make_executor(pool, registry)) as engine,
    ):
        await until(lambda: count_loaded(pool) == 1)
        await nodes[3].kill()
        await until(lambda: bool(nodes[4].loads) and count_loaded(pool) == 1)
        await check_answer(engine)
        assert engine.describe()[0].num_losses == 0


async def test_spares_are_spread_over_the_stages_by_the_size_of_their_weights() -> None:
    nodes = [Node(name) for name in (*"abcd",)]
    sizes = (15, 40, 25)
    roles = [replace(role, heartbeat_s=1.0) for role in make_roles()]
    async with open_registry() as registry, joined(registry, *nodes), open_pool(4, registry) as pool:
        pool.cover("first", dict(zip(roles, sizes, strict=True)))
        await until(lambda: count_loaded(pool) == len(nodes))
        assert sorted(spare.assignment.stage for spare in pool.spares) == [0, 1, 1, 2]


async def test_spares_of_layers_that_no_stage_has_any_more_are_loaded_anew() -> None:
    node = Node("spare")
    [role] = make_roles(1)
    async with open_registry() as registry, joined(registry, node), open_pool(1, registry) as pool:
        for layers in (LayerRange(0, 2), LayerRange(0, 3)):
            pool.cover("first", {replace(role, layers=layers): 1})
            await until(lambda: count_loaded(pool) == 1)
        assert [(load.start, load.stop) for load in node.loads] == [(0, 2), (0, 3)]


async def test_spares_are_released_at_the_end() -> None:
    nodes = [Node("a"), Node("b")]
    async with open_registry() as registry, joined(registry, *nodes):
        async with open_pool(1, registry) as pool:
            pool.cover("first", {make_roles(1)[0]: 1})
            await until(lambda: count_loaded(pool) == 1)
        await until(lambda: len(registry.waiting) == len(nodes))


async def test_spare_of_other_weights_is_turned_away(caplog: pytest.LogCaptureFixture) -> None:
    def open_other(assign: Assign, progress: Progress) -> Stage:
        stage = open_toy(assign, progress)
        stage.restate(weights_parts={"model.layers.0": "other"})
        return stage

    weights, node = WeightsCheck(lambda: {"model.layers.0": "ours"}), Node("spare")
    node.open = open_other
    async with open_registry() as registry, joined(registry, node), open_pool(1, registry, weights) as pool:
        pool.cover("first", {make_roles(1)[0]: 1})
        await until(lambda: bool(node.losses))
        assert "has other weights than this server's copy" in node.losses[0].message
        assert count_loaded(pool) == 0
        await until(lambda: "trying again in 0.5 s" in caplog.text)
    assert "spare is lost" in caplog.text


def test_pool_without_stages_has_no_spare() -> None:
    role = StageAssignment(stage=0, layers=None, model="m")
    assert SparePool(1, None).take(role) is None  # type: ignore[arg-type]

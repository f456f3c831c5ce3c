from __future__ import annotations

import asyncio
import sys
from dataclasses import replace

import pytest

from parallax_core.base.ids import lease_node
from parallax_core.node.membership.loading import NodeRefused
from parallax_core.node.membership.registry import NodeRegistry
from parallax_core.node.membership.spares import SparePool
from parallax_core.node.membership.supervisor import WorkerSupervisor
from parallax_core.node.membership.supply import NodeSupply
from tests.unit.node.cluster import Node, call, joined, make_roles, open_registry, soon, until
from tests.unit.node.membership.nodes import JOIN, add_node

[ROLE] = make_roles(1)


def make_supervisor() -> WorkerSupervisor:
    return WorkerSupervisor(lambda node: [sys.executable, "-S", "-c", "import sys; sys.stdin.read()", node])


async def load_spare(registry: NodeRegistry, node: Node) -> SparePool:
    """Return a pool whose spare is a node that has joined."""
    pool = SparePool(1, registry)
    pool.cover("a pipeline", {ROLE: 1})
    await until(lambda: all(spare.is_loaded for spare in pool.spares))
    assert [spare.node.name for spare in pool.spares if spare.node is not None] == [node.name]
    return pool


async def test_spare_is_taken_first_and_then_the_next_node_that_joins() -> None:
    async with open_registry() as registry:
        node = Node("attic")
        async with joined(registry, node):
            pool = await load_spare(registry, node)
            supply = NodeSupply(registry, spares=pool)
            assert (await soon(supply.find(ROLE))).name == "attic"
            assert pool.spares == ()
            waiting = asyncio.create_task(supply.find(ROLE))
            await add_node_for(registry, "cellar", waiting)
            assert (await soon(waiting)).name == "cellar"


async def add_node_for(registry: NodeRegistry, name: str, waiting: asyncio.Task[object]) -> None:
    await asyncio.sleep(0)
    assert not waiting.done()
    channel = await call(registry, name)
    await channel.send(JOIN)


async def test_process_of_a_stage_ends_when_a_spare_takes_its_place() -> None:
    supervisor = make_supervisor()
    async with open_registry() as registry:
        node = Node("attic")
        async with joined(registry, node):
            pool = await load_spare(registry, node)
            await supervisor.restart("worker/0/0")
            supply = NodeSupply(registry, supervisor, pool)
            assert (await soon(supply.find(replace(ROLE, node="worker/0/0")))).name == "attic"
            assert supervisor.pids == ()


async def test_successor_is_a_spare_or_a_node_of_an_operator_but_no_second_process() -> None:
    async with open_registry() as registry:
        node = Node("attic")
        async with joined(registry, node):
            pool = await load_spare(registry, node)
            found = await soon(NodeSupply(registry, make_supervisor(), pool).find_successor(ROLE))
            assert found is not None
            assert found.name == "attic"
        await add_node(registry, "cellar")
        assert await NodeSupply(registry, make_supervisor()).find_successor(ROLE) is None
        found = await soon(NodeSupply(registry).find_successor(ROLE))
        assert found is not None
        assert found.name == "cellar"


@pytest.mark.parametrize("name", ["attic", lease_node("attic", 1)])
async def test_node_that_has_joined_and_is_not_free_is_waited_for_only_so_long(name: str) -> None:
    async with open_registry() as registry:
        await add_node(registry, "attic")
        await registry.find(lambda _: 1)
        supply = NodeSupply(registry, patience_s=0.01)
        with pytest.raises(NodeRefused, match=rf"stage 0 waited 0\.01 s for node '{name}' in vain") as caught:
            await soon(supply.find(replace(ROLE, node=name)))
        assert (caught.value.node, caught.value.lacks_leases) == (name, name != "attic")


async def test_node_that_is_gone_is_waited_for_as_long_as_it_takes() -> None:
    async with open_registry() as registry:
        waiting = asyncio.create_task(NodeSupply(registry, patience_s=0.001).find(replace(ROLE, node="attic")))
        await asyncio.sleep(0.01)
        await add_node_for(registry, "attic", waiting)
        assert (await soon(waiting)).name == "attic"

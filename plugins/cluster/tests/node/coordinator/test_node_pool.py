"""Nodes that are divided among models: those that joined, and further ones that they were asked to start."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from parallax_cluster.node.coordinator.node_pool import NodePool
from parallax_cluster.wire.further import EndNode, OpenLease, StartNode
from parallax_core.base.ids import HEAD, Epoch
from parallax_core.node.channel import Channel
from parallax_core.node.membership.registry import NodeRegistry
from parallax_core.wire.membership import Join, Leave, Release
from tests.unit.node.cluster import call, open_registry, soon, until


@asynccontextmanager
async def running_pool() -> AsyncIterator[NodePool]:
    async with open_registry() as registry:
        pool = NodePool(registry)
        following = asyncio.create_task(pool.follow())
        yield pool
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)


async def join(registry: NodeRegistry, name: str) -> Channel:
    channel = await call(registry, name)
    await channel.send(Join("inprocess://x", (), "here", 0))
    await until(lambda: name in {node.name for node in registry.joined})
    return channel


def names(pool: NodePool, model: str) -> list[str]:
    return [node.name for node in pool.list_nodes(model)]


async def test_first_model_gets_the_nodes_that_join_and_the_next_one_further_ones() -> None:
    async with running_pool() as pool:
        old = pool.open("old")
        one, two = await join(pool.registry, "one/1"), await join(pool.registry, "two/1")
        await until(lambda: names(pool, "old") == ["one/1", "two/1"])
        new = pool.open("new")
        assert await soon(one.receive()) == StartNode(1)
        assert await soon(two.receive()) == StartNode(1)
        assert names(pool, "new") == []
        new.changed.clear()
        await join(pool.registry, "two/1+1")
        await soon(new.changed.wait())
        await until(lambda: names(pool, "new") == ["two/1+1"])
        assert names(pool, "old") == ["one/1", "two/1"]
        [further] = new.joined
        first = new.find_first(further)
        assert first is not None
        assert (first.name, [node.name for node in pool.firsts]) == ("two/1", ["one/1", "two/1"])
        assert [old.find_first(node) for node in old.joined] == list(old.joined)
        late = await join(pool.registry, "late/1")
        assert await soon(late.receive()) == StartNode(1)
        await until(lambda: "late/1" in names(pool, "old"))


async def test_unloaded_model_leaves_its_nodes_to_the_next() -> None:
    async with running_pool() as pool:
        pool.open("old")
        first = await join(pool.registry, "one/1")
        pool.open("new")
        assert await soon(first.receive()) == StartNode(1)
        further = await join(pool.registry, "one/1+1")
        await until(lambda: names(pool, "new") == ["one/1+1"])

        await soon(pool.close("old"))
        assert isinstance(await soon(first.receive()), Release), "it releases what it has loaded"
        assert names(pool, "new") == ["one/1+1"], "a model has one node on each machine"
        pool.open("third")
        await until(lambda: names(pool, "third") == ["one/1"])

        closing = asyncio.create_task(pool.close("new"))
        assert await soon(first.receive()) == EndNode(1)
        await further.close()
        await soon(closing)
        assert [node.name for node in pool.registry.joined] == ["one/1"]
        pool.open("fourth")
        assert await soon(first.receive()) == StartNode(2), "a number is never used again"


async def test_node_that_is_lost_is_counted_and_one_that_was_to_end_is_not() -> None:
    async with running_pool() as pool:
        pool.open("old")
        first = await join(pool.registry, "one/1")
        new = pool.open("new")
        assert await soon(first.receive()) == StartNode(1)
        for _ in range(2):  # its machine starts it again by itself
            further = await join(pool.registry, "one/1+1")
            await until(lambda: bool(new.joined))
            await further.close()
            await until(lambda: not new.joined)
        await until(lambda: new.num_lost == 2)
        await first.close()
        await until(lambda: not pool.firsts)


async def test_further_node_of_a_machine_that_leaves_stays_until_it_has_left() -> None:
    async with running_pool() as pool:
        pool.open("old")
        first = await join(pool.registry, "one/1")
        new = pool.open("new")
        assert await soon(first.receive()) == StartNode(1)
        await join(pool.registry, "one/1+1")
        await until(lambda: bool(new.joined))
        await first.send(Leave(Epoch(0)))
        assert isinstance(await soon(first.receive()), Release)
        await until(lambda: not pool.firsts)
        [further] = new.joined
        assert new.find_first(further) is None


async def test_node_that_nobody_asked_for_counts_as_a_machine() -> None:
    async with running_pool() as pool:
        pool.open("old")
        await join(pool.registry, "one/1+7")
        await until(lambda: names(pool, "old") == ["one/1+7"])
        assert [node.name for node in pool.firsts] == ["one/1+7"]
        assert pool.get("one/1+7", "old") is pool.firsts[0]
        assert (pool.get("one/1+7", "new"), pool.get(HEAD, "old")) == (None, None)


async def test_leases_are_nobodys_nodes_and_no_machines() -> None:
    async with running_pool() as pool:
        old = pool.open("old")
        await join(pool.registry, "one/1")
        await until(lambda: names(pool, "old") == ["one/1"])
        lease = await join(pool.registry, "one/1~1")
        pool.update()
        assert names(pool, "old") == ["one/1"]
        assert [node.name for node in pool.firsts] == ["one/1"]
        assert pool.get("one/1~1", "old") is None
        assert old.are_complete is False, "the machine has not reported"
        await lease.close()
        await until(lambda: len(pool.registry.joined) == 1)
        assert old.num_lost == 0


async def test_leases_that_any_model_wants_are_asked_for() -> None:
    async with running_pool() as pool:
        old = pool.open("old")
        first = await join(pool.registry, "one/1")
        await until(lambda: bool(old.joined))
        new = pool.open("new")
        assert await soon(first.receive()) == StartNode(1)
        further = await join(pool.registry, "one/1+1")
        await until(lambda: bool(new.joined))
        old.want_leases({"one/1": 1})
        new.want_leases({"one/1+1": 2})
        for channel, wanted in ((first, [1]), (further, [1, 2])):
            found: list[int] = []
            while found != wanted:
                message = await soon(channel.receive())
                found += [message.number] if isinstance(message, OpenLease) else []
        await join(pool.registry, "one/1+1~1")
        assert [node.name for node in pool.firsts] == ["one/1"]
        assert names(pool, "new") == ["one/1+1"]

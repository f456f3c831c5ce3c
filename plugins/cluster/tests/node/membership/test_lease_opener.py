"""Nodes that are asked for leases when these are wanted, and when they join."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parallax_cluster.node.membership.lease_opener import LeaseOpener
from parallax_cluster.wire.further import OpenLease
from parallax_core.api import PeerLost
from parallax_core.base.ids import Epoch
from parallax_core.node.channel import Channel
from parallax_core.node.membership.joined_node import JoinedNode
from parallax_core.node.membership.registry import NodeRegistry
from parallax_core.wire.membership import Join, Release
from parallax_core.wire.messages import Message
from tests.unit.node.cluster import call, open_registry, soon, until

QUIET_S = 0.03
"""Seconds of silence after which nothing more is expected."""


async def join(registry: NodeRegistry, name: str) -> Channel:
    channel = await call(registry, name)
    await channel.send(Join("inprocess://x", (), "here", 0))
    await until(lambda: name in {node.name for node in registry.waiting})
    return channel


async def hear(channel: Channel) -> list[Message]:
    """Return all that a head says until it is silent."""
    found: list[Message] = []
    while True:
        try:
            async with asyncio.timeout(QUIET_S):
                found.append(await channel.receive())
        except TimeoutError:
            return found


async def hear_numbers(channel: Channel) -> list[int]:
    """Return the numbers of the leases that a head asks for until it is silent."""
    return [message.number for message in await hear(channel) if isinstance(message, OpenLease)]


def take(registry: NodeRegistry, name: str) -> asyncio.Task[JoinedNode]:
    return asyncio.create_task(registry.find(lambda node: int(node.name == name)))


async def test_node_is_asked_for_the_leases_that_are_wanted_of_it_and_once() -> None:
    async with open_registry() as registry:
        hub, other = await join(registry, "hub/1"), await join(registry, "other/1")
        registry.services.find(LeaseOpener).want({"hub/1": 2, "nobody/1": 3})
        assert await hear_numbers(hub) == [1, 2]
        registry.services.find(LeaseOpener).want({"hub/1": 2})
        node = await soon(take(registry, "hub/1"))
        registry.give_back(node)
        assert await hear_numbers(hub) == []
        registry.services.find(LeaseOpener).want({"hub/1": 1, "other/1": 1})
        registry.services.find(LeaseOpener).want({"hub/1": 3})
        assert await hear_numbers(hub) == [3]
        assert await hear_numbers(other) == [1]


async def test_node_that_serves_is_asked_as_well() -> None:
    async with open_registry() as registry:
        hub = await join(registry, "hub/1")
        await soon(take(registry, "hub/1"))
        registry.services.find(LeaseOpener).want({"hub/1": 1})
        assert await hear(hub) == [OpenLease(1)], "and keeps what it has loaded"


async def test_node_is_asked_each_time_that_it_joins() -> None:
    async with open_registry() as registry:
        registry.services.find(LeaseOpener).want({"hub/1": 1})
        for _ in range(2):
            hub = await join(registry, "hub/1")
            assert await hear_numbers(hub) == [1]
            await hub.close()
            await until(lambda: not registry.joined)


async def test_node_that_is_gone_is_no_error_and_nobody_is_asked_after_the_end() -> None:
    async with open_registry() as registry:
        hub = await join(registry, "hub/1")
        await hub.close()
        registry.services.find(LeaseOpener).want({"hub/1": 5})
        await until(lambda: not registry.joined)
    await registry.stop()


async def test_lease_that_is_given_back_is_released_and_its_layers_stay() -> None:
    async with open_registry() as registry:
        channel = await join(registry, "hub/1~1")
        registry.give_back(await soon(take(registry, "hub/1~1")), is_shared=True)
        assert await hear(channel) == [Release(Epoch(0), keeps_layers=True)]
        assert [node.name for node in registry.waiting] == ["hub/1~1"]


async def test_lease_that_is_gone_is_given_back_without_an_error() -> None:
    async with open_registry() as registry:
        channel = await join(registry, "hub/1~1")
        node = await soon(take(registry, "hub/1~1"))
        await channel.close()
        with pytest.raises(PeerLost):
            await soon(node.channel.receive())
        registry.give_back(node, is_shared=True)
        assert registry.waiting == ()


async def test_node_whose_leases_are_wanted_releases_the_stage_that_nobody_uses() -> None:
    release = Release(Epoch(0), keeps_layers=True)
    async with open_registry() as registry:
        hub, other = await join(registry, "hub/1"), await join(registry, "other/1")
        registry.services.find(LeaseOpener).want({"hub/1": 1})
        assert sorted(map(str, await hear(hub))) == sorted(map(str, [OpenLease(1), release])), "it may have one"
        registry.give_back(await soon(take(registry, "hub/1")))
        assert await hear(hub) == [release]
        registry.give_back(await soon(take(registry, "other/1")))
        assert await hear(other) == []


class Holder:
    """The link to a node, which notes what it is asked for."""

    def __init__(self, name: str) -> None:
        self.peer = name
        self.asked: list[int] = []
        self.node = JoinedNode(cast("Channel", self), Join("inprocess://x", (), "here", 0))

    async def send(self, message: Message) -> None:
        assert isinstance(message, OpenLease)
        self.asked.append(message.number)


class Head:
    """A head whose nodes all have a stage."""

    def __init__(self) -> None:
        self.joined: list[JoinedNode] = []
        self.waiting: list[JoinedNode] = []
        self.sharing: Collection[str] = ()


numbers = st.dictionaries(st.sampled_from("ab"), st.integers(0, 4))


@given(st.lists(numbers | st.sampled_from("ab"), max_size=12))
def test_each_lease_is_asked_for_once_for_each_joining(steps: list[Mapping[str, int] | str]) -> None:
    async def run() -> None:
        head = Head()
        opener, there, past = LeaseOpener(cast("NodeRegistry", head)), dict[str, Holder](), list[Holder]()
        most: dict[str, int] = {}
        wanted: Mapping[str, int] = {}
        for step in steps:
            if isinstance(step, str):
                there[step] = Holder(step)
                past.append(there[step])
                most[step] = wanted.get(step, 0)
                head.joined = [holder.node for holder in there.values()]
                async with opener.joined(there[step].node):
                    pass
            else:
                wanted = step
                opener.want(step)
                most = {name: max(number, step.get(name, 0)) for name, number in most.items()}
        for _ in range(3):
            await asyncio.sleep(0)
        for holder in past:
            assert len(set(holder.asked)) == len(holder.asked)
        assert {name: there[name].asked for name in there} == {name: list(range(1, most[name] + 1)) for name in there}
        await opener.close()

    asyncio.run(run())

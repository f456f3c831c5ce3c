from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection
from dataclasses import replace

import msgspec
import pytest

from parallax_cluster.node.coordinator.coordinator import UsableNodes
from parallax_cluster.node.coordinator.node_pool import ModelNodes, NodePool
from parallax_cluster.node.coordinator.profiles import NodeProfiles
from parallax_cluster.node.coordinator.rooms import MachineRooms, ModelProfiles
from parallax_cluster.wire.further import StartNode
from parallax_cluster.wire.profile import DeviceReport, LinkReport, NodeReport
from parallax_core.contracts.placement import LinkProfile
from parallax_core.node.membership.joined_node import JoinedNode
from plugins.cluster.tests.node.coordinator.test_node_pool import join
from tests.unit.node.cluster import NUMBERS, open_registry, soon, until

GB = 10**9
REPORT = NodeReport(
    backend="toy",
    device=DeviceReport(memory=8 * GB, flops=1e12, bandwidth=5e10, is_measured=True),
    links=(LinkReport("head", 0.02, 1e8),),
)


@pytest.fixture
async def machine() -> AsyncIterator[tuple[NodePool, ModelNodes, ModelNodes]]:
    """Yield a machine with a node for each of two models, and both models' nodes."""
    async with open_registry() as registry:
        pool = NodePool(registry)
        following = asyncio.create_task(pool.follow())
        old = pool.open("old")
        channel = await join(registry, "one/1")
        await until(lambda: bool(old.joined))
        old.joined[0].report = REPORT
        new = pool.open("new")
        assert await soon(channel.receive()) == StartNode(1)
        await join(registry, "one/1+1")
        await until(lambda: bool(new.joined))
        yield pool, old, new
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)


async def gone(pool: NodePool) -> JoinedNode:
    """Return a node that has left."""
    channel = await join(pool.registry, name := f"gone/{next(NUMBERS)}")
    node = pool.registry.get(name)
    assert node is not None
    await channel.close()
    await until(node.channel.ended.is_set)
    return node


async def test_model_may_use_what_others_leave(machine: tuple[NodePool, ModelNodes, ModelNodes]) -> None:
    pool, old, new = machine
    rooms, [first], [further] = MachineRooms(pool), old.joined, new.joined
    assert rooms.find_room(first, "new") == 8 * GB
    old.find_use = lambda _: 6 * GB
    assert rooms.find_room(first, "new") == 2 * GB
    assert rooms.find_share(further, new) == 0.25
    assert rooms.find_room(first, "old") == 8 * GB
    new.find_use = {"one/1+1": GB}.__getitem__
    assert rooms.find_room(first, "old") == 7 * GB
    old.find_use = lambda _: 9 * GB
    assert rooms.find_room(first, "new") == 0
    assert rooms.find_share(further, new) == 0.01


async def test_memory_of_a_machine_is_the_most_that_was_free(
    machine: tuple[NodePool, ModelNodes, ModelNodes],
) -> None:
    pool, old, _ = machine
    rooms, [first] = MachineRooms(pool), old.joined
    assert rooms.find_total(first) == 8 * GB
    first.report = msgspec.structs.replace(REPORT, device=msgspec.structs.replace(REPORT.device, memory=3 * GB))
    assert rooms.find_total(first) == 8 * GB


async def test_further_node_has_the_profile_of_its_machine(
    machine: tuple[NodePool, ModelNodes, ModelNodes],
) -> None:
    pool, old, new = machine
    old.find_use = lambda _: 6 * GB
    described = NodeProfiles("local/0").describe

    def describe(nodes: Collection[JoinedNode]) -> UsableNodes:
        found = described(nodes)
        return replace(found, cluster=replace(found.cluster, unreachable=frozenset({("one/1", "head")})))

    profiles = ModelProfiles(new, MachineRooms(pool), describe)
    found = profiles.describe(new.joined)
    assert found.cluster.unreachable == {("one/1+1", "head")}
    [node] = found.cluster.nodes
    assert (node.name, node.device.memory, node.device.flops) == ("one/1+1", 2 * GB, 1e12)
    assert found.cluster.links == (LinkProfile(ends=("one/1+1", "head"), round_trip_s=0.02, bandwidth=1e8),)
    old.joined[0].report = None
    found = profiles.describe(new.joined)
    assert (found.cluster.nodes, found.others) == ((), {"one/1+1": "it has not reported its device yet"})
    old.joined[0].channel.ended.set()
    assert profiles.describe(new.joined).others == {"one/1+1": "its machine leaves"}


async def test_profiles_of_nodes_are_made_anew_only_if_something_is_new(
    machine: tuple[NodePool, ModelNodes, ModelNodes],
) -> None:
    pool, old, new = machine
    profiles = ModelProfiles(new, MachineRooms(pool), NodeProfiles("local/0").describe)
    first, again = (profiles.describe(new.joined).cluster for _ in range(2))
    assert again.nodes[0] is first.nodes[0]
    assert again.links[0] is first.links[0]
    old.find_use = lambda _: GB
    assert profiles.describe(new.joined).cluster.nodes[0].device.memory == 7 * GB


async def test_machines_that_are_gone_are_forgotten(machine: tuple[NodePool, ModelNodes, ModelNodes]) -> None:
    pool, old, _ = machine
    rooms, [first] = MachineRooms(pool), old.joined
    assert rooms.note_total(first, 9 * GB) == 9 * GB
    for number in range(20):
        node = JoinedNode(first.channel, first.join) if number % 2 else await gone(pool)
        rooms.note_total(node, GB)
    assert rooms.find_total(first) == 9 * GB
    assert len(rooms._totals) < 20

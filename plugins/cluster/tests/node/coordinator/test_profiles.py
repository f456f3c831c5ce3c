from __future__ import annotations

import msgspec
import pytest

from parallax_cluster.node.coordinator.profiles import ASSUMED, PATIENCE_S, NodeProfiles
from parallax_cluster.wire.profile import DeviceReport, LinkReport, NodeReport, StoredLayers
from parallax_core.api import TransportPlan
from parallax_core.builtin.inprocess import InProcessTransport
from parallax_core.contracts.placement import LinkProfile
from parallax_core.contracts.stage import LayerRange
from parallax_core.node.channel import Channel
from parallax_core.node.membership.joined_node import JoinedNode
from parallax_core.wire.membership import Join

GB = 10**9
REPORT = NodeReport(
    backend="toy",
    device=DeviceReport(memory=4 * GB, flops=1e12, bandwidth=5e10, is_measured=True),
    stored=(StoredLayers("pypi:toy", 0, 3),),
    links=(LinkReport("head", 0.02, 1e8),),
)


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


async def make_node(name: str, memory: int = 0) -> JoinedNode:
    """Return a node that has joined."""
    head = InProcessTransport(TransportPlan(node="head", listen="inprocess://"))
    await head.start()
    link = await InProcessTransport(TransportPlan(node=name)).connect(head.address, "head")
    await link.close()
    accepted = await head.accept()
    return JoinedNode(Channel(accepted), Join("inprocess://x", ("toy",), "here", 1, memory=memory))


async def test_node_is_used_once_it_has_reported() -> None:
    node, profiles = await make_node("a"), NodeProfiles("local/0", "pypi:toy")
    assert profiles.describe([node]).others == {"a": "it has not reported its device yet"}
    node.report = REPORT
    usable = profiles.describe([node])
    [found] = usable.cluster.nodes
    assert (found.name, found.device.memory, found.cached_layers) == ("a", 4 * GB, LayerRange(0, 3))
    assert usable.cluster.links == (LinkProfile(ends=("a", "head"), round_trip_s=0.02, bandwidth=1e8),)
    assert (usable.others, usable.cluster.head) == ({}, "head")


async def test_memory_counts_as_before_layers_were_loaded_by_the_same_process() -> None:
    node, profiles = await make_node("a"), NodeProfiles("local/0")
    less = msgspec.structs.replace(REPORT, device=msgspec.structs.replace(REPORT.device, memory=GB))
    for report in (REPORT, less):
        node.report = report
        assert profiles.describe([node]).cluster.nodes[0].device.memory == 4 * GB
    again = await make_node("a")
    again.report = less
    assert profiles.describe([again]).cluster.nodes[0].device.memory == GB


@pytest.mark.parametrize("memory", [0, GB])
async def test_node_that_never_reports_is_taken_for_a_slow_one_if_its_memory_is_known(memory: int) -> None:
    node, clock = await make_node("a", memory), Clock()
    profiles = NodeProfiles("local/0", clock=clock)
    assert not profiles.describe([node]).cluster.nodes
    clock.now = PATIENCE_S
    found = profiles.describe([node]).cluster.nodes
    assert [(each.device.memory, each.device.flops) for each in found] == [(GB, ASSUMED.flops)] * bool(memory)


async def test_node_beside_the_head_is_near_it() -> None:
    own, profiles = await make_node("local/0"), NodeProfiles("local/0")
    own.report = msgspec.structs.replace(REPORT, links=())
    [link] = profiles.describe([own]).cluster.links
    assert (set(link.ends), link.round_trip_s) == ({"local/0", "head"}, 2e-4)

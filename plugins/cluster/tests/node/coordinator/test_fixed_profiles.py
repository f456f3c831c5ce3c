from __future__ import annotations

from typing import Any

from parallax_cluster.node.coordinator.fixed_profiles import FixedProfiles
from parallax_cluster.wire.profile import DeviceReport, LinkReport, NodeReport
from parallax_core.contracts.stage import LayerRange
from parallax_core.node.membership.joined_node import JoinedNode
from parallax_core.wire.membership import Join


class Channel:
    """The name of a node."""

    def __init__(self, peer: str) -> None:
        self.peer = peer


def join(name: str, report: NodeReport | None = None, **given: Any) -> JoinedNode:
    layers = {"model": "hf:org/model", "start": 0, "stop": 3, "is_fixed": True, "memory": 5, **given}
    joined = Join("inprocess://x", (), "here", 0, **layers)
    return JoinedNode(Channel(name), joined, report=report)  # type: ignore[arg-type]


def test_nodes_with_layers_of_the_model_are_described_before_they_have_measured_anything() -> None:
    device = DeviceReport(memory=7, flops=1e12, bandwidth=1e11)
    link = LinkReport(peer="a", round_trip_s=0.02, bandwidth=1e8)
    report = NodeReport(backend="mlx", device=device, links=(link,))
    usable = FixedProfiles("hf:org/model").describe([join("a"), join("b", report, start=3, stop=6)])
    first, second = usable.cluster.nodes
    assert (first.name, first.fixed_layers, first.device.memory) == ("a", LayerRange(0, 3), 5)
    assert (second.fixed_layers, second.device.flops) == (LayerRange(3, 6), 1e12)
    assert [set(each.ends) for each in usable.cluster.links] == [{"a", "b"}]
    assert usable.cluster.head == "head"
    assert not usable.others


def test_other_nodes_are_not_used() -> None:
    nodes = [join("any", is_fixed=False), join("other", model="hf:org/other"), join("none", start=3)]
    usable = FixedProfiles("hf:org/model").describe(nodes)
    assert usable.cluster.nodes == ()
    assert set(usable.others) == {"any", "other", "none"}
    assert usable.others["any"] == "it has not announced layers of hf:org/model"

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from parallax_cluster.placement.devices import find_device
from parallax_cluster.reports import SLACK, ReportedCluster, describe_device, limit_device, make_link, make_node
from parallax_cluster.wire.profile import LinkReport, NodeReport, StoredLayers
from parallax_core.contracts.placement import DeviceProfile, LinkProfile
from parallax_core.contracts.stage import LayerRange

DEVICE = DeviceProfile(memory=8 * 10**9, flops=4e12, bandwidth=9e10, step_s=1e-3, name="Apple M2", is_measured=True)
REPORT = NodeReport(
    backend="mlx",
    device=describe_device(DEVICE),
    disk_bandwidth=3e9,
    disk_free=10**11,
    stored=(StoredLayers("hf:org/other", 0, 4), StoredLayers("hf:org/name", 3, 9)),
)


def test_node_has_what_it_reports() -> None:
    node = make_node("attic", REPORT, site="home", model="hf:org/name")
    assert (node.name, node.site, node.device) == ("attic", "home", DEVICE)
    assert (node.cached_layers, node.disk_bandwidth, node.disk_free) == (LayerRange(3, 9), 3e9, 10**11)
    assert make_node("attic", REPORT, model="hf:org/third").cached_layers is None
    assert not node.leases
    assert make_node("attic", msgspec.structs.replace(REPORT, leases=True)).leases


@pytest.mark.parametrize("limit", [0, 4096])
def test_limit_of_the_context_is_that_of_the_report(limit: int) -> None:
    assert make_node("attic", msgspec.structs.replace(REPORT, max_context=limit)).max_context == limit


def test_known_product_is_not_believed_to_be_much_faster_than_it_is() -> None:
    known = find_device("RTX4090")
    assert known
    lie = replace(DEVICE, name="NVIDIA GeForce RTX 4090", flops=1e17, bandwidth=1e15)
    limited = limit_device(lie)
    assert (limited.flops, limited.bandwidth) == (SLACK * known.flops, SLACK * known.bandwidth)
    honest = replace(lie, flops=known.flops / 2, bandwidth=known.bandwidth / 2)
    assert limit_device(honest) == honest
    assert limit_device(replace(lie, name="something new")).flops == 1e17


def test_link_has_both_ends() -> None:
    assert make_link("attic", LinkReport("desk", 0.02, 1e7)) == LinkProfile(
        ends=("attic", "desk"), round_trip_s=0.02, bandwidth=1e7
    )


def test_cluster_has_the_nodes_and_the_worse_figures_of_each_link() -> None:
    links = (LinkReport("desk", 0.02, 1e7), LinkReport("head", 0.001, 1e8), LinkReport("nobody", 9.0, 1e3))
    reports = {
        "attic": msgspec.structs.replace(REPORT, links=links),
        "desk": msgspec.structs.replace(REPORT, links=(LinkReport("attic", 0.01, 1e6),)),
    }
    cluster = ReportedCluster("head", "hf:org/name").update(reports)
    assert [node.name for node in cluster.nodes] == ["attic", "desk"]
    assert cluster.nodes[0].cached_layers == LayerRange(3, 9)
    assert cluster.head == "head"
    assert cluster.links == (
        LinkProfile(ends=("attic", "desk"), round_trip_s=0.02, bandwidth=1e6),
        LinkProfile(ends=("attic", "head"), round_trip_s=0.001, bandwidth=1e8),
    )


def test_what_has_not_changed_of_a_cluster_is_made_once() -> None:
    linked = msgspec.structs.replace(REPORT, links=(LinkReport("head", 0.001, 1e8), LinkReport("desk", 0.02, 1e7)))
    reported, reports = ReportedCluster("head"), {"attic": linked, "desk": REPORT}
    first = reported.update(reports)
    assert reported.update(dict(reports)) is first
    changed = reported.update(reports | {"desk": msgspec.structs.replace(REPORT, disk_free=5)})
    assert changed.nodes[0] is first.nodes[0]
    assert (changed.nodes[1].disk_free, changed.links) == (5, first.links)
    assert changed.links[0] is first.links[0]
    alone = reported.update({"attic": linked})
    assert ([node.name for node in alone.nodes], len(alone.links)) == (["attic"], 1)
    assert reported.update({"desk": REPORT, "attic": linked}).nodes[0].name == "desk"


def test_cluster_has_the_links_that_do_not_exist_in_one_direction() -> None:
    reports = {"attic": msgspec.structs.replace(REPORT, unreached=("desk",)), "desk": REPORT}
    assert ReportedCluster("head").update(reports).unreachable == {("attic", "desk")}

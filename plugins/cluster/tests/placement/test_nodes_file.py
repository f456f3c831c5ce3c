from __future__ import annotations

import contextlib
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parallax_cluster.placement.nodes_file import describe_node, read_cluster
from parallax_core.base.errors import UsageError
from parallax_core.contracts.placement import ClusterProfile, DeviceProfile, LinkProfile, NodeProfile
from parallax_core.contracts.stage import LayerRange

PAGE = Path(__file__).parents[4] / "docs/explanation/placement.md"
NODE = {"name": "a", "memory_gb": 8, "tflops": 4, "bandwidth_gb_s": 100}


def test_file_of_the_documentation_is_read() -> None:
    section = PAGE.read_text(encoding="utf-8").partition("## The nodes file\n")[2].partition("\nA node may also")[0]
    cluster = read_cluster(tomllib.loads("\n".join(line[4:] for line in section.splitlines())))
    assert [node.name for node in cluster.nodes] == ["desk", "attic-1", "attic-2", "office"]
    assert (cluster.nodes[0].device.name, cluster.nodes[0].device.memory) == ("RTX3060", 11_200_000_000)
    assert cluster.nodes[3].cached_layers == LayerRange(0, 16)
    assert cluster.links == (LinkProfile(ends=("home", "office"), round_trip_s=0.018, bandwidth=11.25e6),)
    assert cluster.head == "home"


def test_units_are_converted() -> None:
    extra = {
        "flops_efficiency": 0.5,
        "bandwidth_efficiency": 0.25,
        "step_ms": 2,
        "layer_ms": 0.5,
        "disk_mb_s": 10,
        "download_mb_s": 20,
        "site": "s",
        "leases": True,
    }
    device = DeviceProfile(
        memory=8 * 10**9,
        flops=4e12,
        bandwidth=1e11,
        flops_efficiency=0.5,
        bandwidth_efficiency=0.25,
        step_s=0.002,
        layer_s=0.0005,
    )
    node = NodeProfile(name="a", device=device, site="s", disk_bandwidth=1e7, download_bandwidth=2e7, leases=True)
    network = LinkProfile(ends=("", ""), round_trip_s=0.005, bandwidth=1e6)
    found = read_cluster({"nodes": [NODE | extra], "network": {"rtt_ms": 5, "mbit_s": 8}})
    assert found == ClusterProfile(nodes=(node,), default_link=network)


@pytest.mark.parametrize(
    ("contents", "message"),
    [
        ({}, "nodes"),
        ({"nodes": []}, "nodes: "),
        ([], "Expected `object`"),
        ({"nodes": [NODE | {"memory_gb": "8"}]}, r"nodes\[0\].memory_gb: Expected"),
        ({"nodes": [NODE | {"memory_gb": 0}]}, r"nodes\[0\].memory_gb: Expected `float` > 0"),
        ({"nodes": [NODE, NODE | {"name": "b", "memry": 8}]}, r"nodes\[1\]: Object contains unknown field `memry`"),
        ({"nodes": [{"name": "a", "memory_gb": 8}]}, r"nodes\[0\] \(a\): tflops is missing"),
        ({"nodes": [{"name": "a", "device": "RTX9"}]}, "'RTX9' is no device with known figures"),
        ({"nodes": [NODE, NODE]}, "nodes: 'a' is named more than once"),
        (
            {"nodes": [NODE], "links": [{"ends": ["a", "b"], "rtt_ms": 1}]},
            r"links\[0\].ends: there is no node or site 'b'",
        ),
        ({"nodes": [NODE], "links": [{"ends": ["a"], "rtt_ms": 1}]}, r"links\[0\].ends: "),
        ({"nodes": [NODE], "network": {"head": "b"}}, "network.head: there is no node or site 'b'"),
        ({"nodes": [NODE | {"cached_layers": [1]}]}, r"nodes\[0\].cached_layers"),
        ({"nodes": [NODE | {"count": 10**9}]}, r"nodes\[0\].count"),
        ({"nodes": [NODE | {"count": 60_000, "gpus": 2}]}, "120000 nodes are too many"),
        ({"nodes": [NODE | {"gpus": 2, "gpu_link": "rope"}]}, r"nodes\[0\].gpu_link: 'rope' is no kind of link"),
        ({"nodes": [NODE | {"cached_layers": [10, 2]}]}, r"nodes\[0\].cached_layers: \[10, 2\] is empty"),
        ({"nodes": [NODE], "links": [{"ends": ["a", "a"], "rtt_ms": 1}]}, "'a' has no link with itself"),
        ({"nodes": [NODE | {"site": "s"}], "links": [{"ends": ["a", "s"]}]}, r"links\[0\]: rtt_ms is missing"),
        ({"nodes": [NODE], "network": {"kind": "rope"}}, "network.kind: 'rope' is no kind of link"),
        (
            {
                "nodes": [NODE, NODE | {"name": "b"}],
                "links": [{"ends": ["a", "b"], "rtt_ms": 1}, {"ends": ["b", "a"], "rtt_ms": 500}],
            },
            r"links\[1\].ends: links\[0\] is between the same ends",
        ),
    ],
)
def test_wrong_field_is_named(contents: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        read_cluster(contents)
    assert caught.value.hint


values = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=5) | st.sampled_from(list(NODE)),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([*NODE, "nodes", "links", "x"]), inner),
    max_leaves=10,
)


@given(values, st.sampled_from([*NODE, "site", "count", "device", "cached_layers", "step_ms"]))
def test_any_other_contents_are_refused_cleanly(value: Any, field: str) -> None:
    for contents in (value, {"nodes": value}, {"nodes": [NODE | {field: value}]}, {"nodes": [NODE], "links": value}):
        with contextlib.suppress(UsageError):
            assert read_cluster(contents).nodes


def test_node_is_described_as_it_is_read() -> None:
    device = DeviceProfile(
        memory=8 * 10**9,
        flops=4e12,
        bandwidth=1e11,
        step_s=0.002,
        layer_s=0.0005,
        name='Apple M2 "Max"',
        total_memory=9,
    )
    node = NodeProfile(
        name="a", device=device, site="s", cached_layers=LayerRange(0, 4), disk_bandwidth=1e7, download_bandwidth=5e7
    )
    entry = describe_node(node)
    assert read_cluster({"nodes": [entry]}).nodes == (replace(node, device=replace(device, total_memory=0)),)
    shared = replace(node, device=replace(device, total_memory=0), leases=True)
    assert "leases" not in entry
    assert read_cluster({"nodes": [describe_node(shared)]}).nodes == (shared,)
    measured = replace(node, device=replace(device, total_memory=0, is_measured=True))
    assert read_cluster({"nodes": [describe_node(measured)]}).nodes == (measured,)
    known = describe_node(replace(node, device=replace(device, name="RTX4090")))
    assert read_cluster({"nodes": [known]}).nodes[0].device.flops_efficiency == 1.0


@pytest.mark.parametrize("value", [float("inf"), float("nan"), 1e300, 1e-300])
@pytest.mark.parametrize("name", ["tflops", "bandwidth_gb_s", "bandwidth_efficiency", "disk_mb_s"])
def test_figures_are_finite_and_so_are_their_inverses(name: str, value: float) -> None:
    with pytest.raises(UsageError, match=rf"nodes\[0\].{name}"):
        read_cluster({"nodes": [NODE | {name: value}]})


def test_link_that_carries_next_to_nothing_is_refused() -> None:
    with pytest.raises(UsageError, match=r"network.mbit_s"):
        read_cluster({"nodes": [NODE], "network": {"mbit_s": 5e-324}})


def test_figures_of_a_data_sheet_are_not_reached_and_measured_ones_are() -> None:
    sheet, measured = read_cluster({"nodes": [NODE, NODE | {"name": "b", "measured": True}]}).nodes
    assert (sheet.device.flops_efficiency, sheet.device.bandwidth_efficiency) == (0.5, 0.75)
    assert min(sheet.device.step_s, sheet.device.layer_s) > 0
    assert (measured.device.flops_efficiency, measured.device.bandwidth_efficiency) == (1.0, 1.0)
    assert (measured.device.step_s, measured.device.layer_s) == (0.0, 0.0)
    assert (sheet.device.is_measured, measured.device.is_measured) == (False, True)


def test_kinds_of_links_have_figures_of_which_given_ones_replace_one() -> None:
    nodes = [NODE, NODE | {"name": "b"}]
    links: list[tuple[dict[str, Any], tuple[float, float]]] = [
        ({"kind": "wifi"}, (0.004, 37.5e6)),
        ({"kind": "10 GbE", "rtt_ms": 1}, (0.001, 1175e6)),
        ({"kind": "Thunderbolt 5", "mbit_s": 8}, (0.0002, 1e6)),
    ]
    for link, expected in links:
        cluster = read_cluster({"nodes": nodes, "links": [{"ends": ["a", "b"], **link}], "network": link})
        for found in (*cluster.links, cluster.default_link):
            assert (found.round_trip_s, found.bandwidth) == pytest.approx(expected)


def test_devices_of_one_machine_are_nodes_with_links_of_their_own() -> None:
    entry = NODE | {"count": 2, "gpus": 3, "gpu_link": "nvlink"}
    cluster = read_cluster({"nodes": [entry], "network": {"kind": "wifi"}})
    assert [node.name for node in cluster.nodes] == [f"a-{rank}-gpu{gpu}" for rank in (1, 2) for gpu in range(3)]
    assert {link.ends for link in cluster.links} == {
        (f"a-{rank}-gpu{one}", f"a-{rank}-gpu{other}") for rank in (1, 2) for one, other in ((0, 1), (0, 2), (1, 2))
    }
    assert {link.bandwidth for link in cluster.links} == {125e9}


def test_links_that_do_not_exist_are_named_by_nodes_and_sites() -> None:
    nodes = [{"name": name, "device": "M4Max", "site": site} for name, site in (("a", "x"), ("b", "x"), ("c", ""))]
    cluster = read_cluster({"nodes": nodes, "network": {"unreachable": [["x", "c"], ["a", "x"]]}})
    assert cluster.unreachable == {("a", "c"), ("b", "c"), ("a", "b")}
    with pytest.raises(UsageError, match=r"network\.unreachable\[0\]: there is no node or site 'd'"):
        read_cluster({"nodes": nodes, "network": {"unreachable": [["a", "d"]]}})

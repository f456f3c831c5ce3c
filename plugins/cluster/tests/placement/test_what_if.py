from __future__ import annotations

from dataclasses import replace

import pytest

from parallax_cluster.placement.cost_model import CostModel
from parallax_cluster.placement.what_if import change_cluster
from parallax_core.base.errors import UsageError
from parallax_core.contracts.placement import ClusterProfile, PlacementProblem
from tests.support.clusters import make_model, make_node

CLUSTER = ClusterProfile(nodes=(make_node("desk", site="home"), make_node("attic")), head="home")


def test_added_nodes_are_as_far_as_they_say_from_all_others() -> None:
    cluster = change_cluster(change_cluster(CLUSTER, "+2xRTX4090@20ms/80mbit"), "+m4max@50ms")
    assert [node.name for node in cluster.nodes] == ["desk", "attic", "RTX4090 3", "RTX4090 4", "M4Max 5"]
    costs = CostModel(PlacementProblem(cluster=cluster, model=make_model()))
    ends = [(0, 1), (0, 2), (1, 3), (2, 3), (2, 4), (0, 4)]
    assert [costs.find_link(*each).round_trip_s for each in ends] == [0.001, 0.02, 0.02, 0.02, 0.05, 0.05]
    assert costs.find_link(0, 2).bandwidth == 10e6
    assert costs.find_link(0, 4).bandwidth == CLUSTER.default_link.bandwidth


def test_added_node_is_near_if_it_does_not_say() -> None:
    cluster = change_cluster(CLUSTER, "+T4")
    costs = CostModel(PlacementProblem(cluster=cluster, model=make_model()))
    assert costs.find_link(0, 2).round_trip_s == CLUSTER.default_link.round_trip_s


def test_node_is_taken_away() -> None:
    left = change_cluster(CLUSTER, "-desk")
    assert ([node.name for node in left.nodes], left.head) == (["attic"], "home")
    assert change_cluster(replace(CLUSTER, head="desk"), "-desk").head == "", "the head was there"


def test_kind_of_a_link_and_words_of_a_device_are_read() -> None:
    cluster = change_cluster(CLUSTER, "+2x RTX 4090 48GB@10gbe")
    assert [node.name for node in cluster.nodes[2:]] == ["RTX4090 3", "RTX4090 4"]
    assert cluster.nodes[2].device.memory == int(48e9 * 0.92)
    costs = CostModel(PlacementProblem(cluster=cluster, model=make_model()))
    assert costs.find_link(0, 2).round_trip_s == pytest.approx(0.0002)
    assert costs.find_link(1, 3).bandwidth == pytest.approx(9400e6 / 8)


def test_memory_and_links_are_changed_and_commas_join_changes() -> None:
    cluster = change_cluster(CLUSTER, "attic=64gb, desk~attic@5ms, -desk, +T4")
    attic, added = cluster.nodes
    assert (attic.name, attic.device.memory, added.name) == ("attic", int(64e9 * 0.92), "T4 2")
    faster = change_cluster(change_cluster(CLUSTER, "home~attic@1ms/8mbit"), "attic~home@2ms")
    assert [(link.ends, link.round_trip_s) for link in faster.links] == [(("attic", "home"), 0.002)]


def test_no_more_nodes_are_added_than_may_be() -> None:
    assert len(change_cluster(CLUSTER, "+3xT4", 5).nodes) == 5
    for change in ("+4xT4", "+3xT4,+T4"):
        with pytest.raises(UsageError, match="makes 6 nodes") as caught:
            change_cluster(CLUSTER, change, 5)
        assert caught.value.hint == "5 at most are planned here"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("RTX4090", "is not a change"),
        ("+1xRTX4090@fast", "'fast' is no link"),
        (f"+1xRTX4090@{'9' * 400}ms", "is no link"),
        ("+0.5xRTX4090", "is no device"),
        ("+Abacus@1ms", "'Abacus' in '\\+Abacus@1ms' is no device with known figures"),
        ("-nobody", "there is no node 'nobody'"),
        ("nobody=64gb", "there is no node 'nobody'"),
        ("desk=64", "is not a change"),
        ("desk~nobody@wifi", "there is no node or site 'nobody'"),
        ("desk~@wifi", "there is no node or site ''"),
        ("desk~attic@rope", "'rope' is no link"),
        ("desk~attic~home@wifi", "is not a change"),
        ("+99999xT4", "makes 100001 nodes"),
        ("+1000000xT4", "adds 1000000 nodes"),
        ("+0xT4", "adds 0 nodes"),
        ("desk~desk@wifi", "'desk' has no link with itself"),
        ("", "is not a change"),
        ("+T4,", "is not a change"),
    ],
)
def test_wrong_change_is_refused(change: str, message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        change_cluster(CLUSTER, change)
    assert caught.value.hint

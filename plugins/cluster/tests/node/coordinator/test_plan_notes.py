"""What is logged and said of plans."""

from __future__ import annotations

import logging

import pytest

from parallax_cluster.layer_plan import LayerPlan
from parallax_cluster.node.coordinator.plan_notes import MOST_NAMED, Known, describe_names, log_plan
from parallax_core.contracts.placement import ClusterProfile
from tests.support.clusters import make_node


def know(*names: str) -> Known:
    return ClusterProfile(nodes=tuple(make_node(name) for name in names)), {}


def test_plan_over_many_nodes_names_a_few_idle_ones(caplog: pytest.LogCaptureFixture) -> None:
    idle = {f"m{number}/1": "it is too small" for number in range(300)}
    with caplog.at_level(logging.INFO):
        log_plan(LayerPlan(cluster=ClusterProfile(nodes=())), "", idle)
    lines = [record.getMessage() for record in caplog.records if "idle" in record.getMessage()]
    assert lines[0] == "node is idle node=m0/1: it is too small"
    assert lines[MOST_NAMED:] == [f"further nodes are idle number={300 - MOST_NAMED}; `parallax nodes` says why"]


def test_reason_of_a_plan_names_a_few_of_many_nodes() -> None:
    assert describe_names(know("a/1", "b/1"), know("b/1", "c/1")) == [
        "node 'c/1' can be used",
        "node 'a/1' can no longer be used",
    ]
    many = [f"m{number}/1" for number in range(300)]
    found = describe_names(None, know(*many))
    assert len(found) == MOST_NAMED + 1
    assert found[-1] == f"{300 - MOST_NAMED} further nodes can be used"


def test_eight_nodes_are_all_named() -> None:
    names = [f"m{number}/1" for number in range(9)]
    assert len(describe_names(None, know(*names[:8]))) == 8
    assert describe_names(None, know(*names[:8]))[-1] == "node 'm7/1' can be used"
    assert describe_names(None, know(*names))[-1] == "1 further nodes can be used"

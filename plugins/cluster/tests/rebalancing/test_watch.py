from __future__ import annotations

from dataclasses import replace

import pytest

from parallax_cluster.placement.cost_model import CostModel
from parallax_cluster.rebalancing.slowdown import SlowdownEstimator, SlowdownRules
from parallax_cluster.rebalancing.watch import GAP_S, KEPT_S, SlowdownWatch, describe_changes
from parallax_cluster.step_time import StageTime, list_windows, weigh_rows
from parallax_core.api import Draw, Row, SeqId
from parallax_core.contracts.placement import ClusterProfile, PlacedStage, PlacementProblem
from parallax_core.contracts.stage import LayerRange
from tests.support.clusters import make_model, make_node

MODEL = make_model(6)
CLUSTER = ClusterProfile(nodes=(make_node("a"), make_node("b")))
STAGE = PlacedStage("b", LayerRange(2, 6))
ROWS = (Row(SeqId(0), 9, (1,), (Draw(0),)), Row(SeqId(1), 0, (1, 2, 3)))


def predict() -> float:
    costs = CostModel(PlacementProblem(cluster=CLUSTER, model=MODEL))
    return StageTime(costs, 1, 2, 6).measure(weigh_rows(ROWS, list_windows(MODEL.layers)))


def slow_down(watch: SlowdownWatch, times: float = 3.0, until: float = 60.0) -> bool:
    now, is_due = 0.0, False
    while now < until:
        now += 0.1
        is_due |= watch.note(STAGE, ROWS, times * predict(), now)
    return is_due


def test_node_that_is_slow_is_planned_with_as_a_slow_one() -> None:
    watch = SlowdownWatch(MODEL)
    assert watch.follow(CLUSTER, 0.0) == CLUSTER
    assert slow_down(watch)
    assert watch.take_changes(["b"], 60.0) == {"b": pytest.approx(3.0)}
    assert watch.take_changes(["b"], 60.0) == {}
    a, b = watch.follow(CLUSTER, 0.0).nodes
    assert a == CLUSTER.nodes[0]
    device = CLUSTER.nodes[1].device
    assert b.device.flops == pytest.approx(device.flops / 3)
    assert b.device.bandwidth == pytest.approx(device.bandwidth / 3)
    assert watch.slowdowns == {"a": 1.0, "b": pytest.approx(3.0)}


def test_node_that_measures_itself_anew_is_judged_anew() -> None:
    watch = SlowdownWatch(MODEL)
    watch.follow(CLUSTER, 0.0)
    slow_down(watch)
    less_memory = replace(CLUSTER.nodes[1], device=replace(CLUSTER.nodes[1].device, memory=1))
    watch.follow(replace(CLUSTER, nodes=(less_memory,)), 60.0)
    assert watch.slowdowns == {"b": pytest.approx(3.0)}
    watch.follow(ClusterProfile(nodes=(make_node("b", tflops=10),)), 60.0)
    assert watch.slowdowns == {"b": 1.0}


def test_nodes_that_are_gone_and_steps_without_rows_do_not_count() -> None:
    watch = SlowdownWatch(MODEL, SlowdownRules(span_s=1.0, min_intervals=1, interval_s=0.1))
    watch.follow(ClusterProfile(nodes=CLUSTER.nodes[:1]), 0.0)
    assert not slow_down(watch)
    watch.follow(CLUSTER, 0.0)
    assert not watch.note(STAGE, (), 5.0, 0.0)
    assert slow_down(watch, until=3.0)
    watch.follow(ClusterProfile(nodes=CLUSTER.nodes[:1]), 0.0)
    assert watch.take_changes([], 60.0) == {}


def test_steps_that_follow_at_once_are_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    watch = SlowdownWatch(MODEL)
    watch.follow(CLUSTER, 0.0)
    noted: list[float] = []
    monkeypatch.setattr(SlowdownEstimator, "note", lambda *step: noted.append(step[-1]))
    for number in range(1001):
        watch.note(STAGE, ROWS, 1.0, number * GAP_S / 1000)
    assert noted == [0.0, GAP_S]


def test_slow_node_without_layers_is_tried_again_after_a_while_and_one_with_layers_is_not() -> None:
    watch = SlowdownWatch(MODEL)
    watch.follow(CLUSTER, 0.0)
    slow_down(watch)
    watch.take_changes(["b"], 60.0)
    assert watch.take_changes(["b"], 1e6) == {}
    assert watch.take_changes([], 1e6) == {"b": 1.0}


def test_changes_in_words() -> None:
    assert describe_changes({"a/1": 2.345}) == ["node 'a/1' takes 2.3 times as long as predicted"]


@pytest.mark.parametrize(("seconds", "factor"), [(600.0, 3.0), (2 * KEPT_S, 1.0)])
def test_machine_that_comes_back_is_known_as_slow_for_a_while(seconds: float, factor: float) -> None:
    watch, stage = SlowdownWatch(MODEL), replace(STAGE, node="b/7")
    watch.follow(ClusterProfile(nodes=(make_node("a/1"), make_node("b/7"))), 0.0)
    for number in range(600):
        watch.note(stage, ROWS, 3.0 * predict(), number / 10)
    watch.follow(ClusterProfile(nodes=(make_node("a/1"),)), 60.0)
    found = watch.follow(ClusterProfile(nodes=(make_node("a/1"), make_node("b/8"))), 60.0 + seconds)
    assert watch.slowdowns == {"a/1": 1.0, "b/8": pytest.approx(factor)}
    assert found.nodes[1].device.flops == pytest.approx(make_node("b/8").device.flops / factor)


def test_node_that_is_faster_than_predicted_is_no_reason_to_move_layers() -> None:
    watch = SlowdownWatch(MODEL)
    watch.follow(CLUSTER, 0.0)
    assert not slow_down(watch, 0.25)
    assert watch.take_changes(["b"], 60.0) == {}
    a, b = watch.follow(CLUSTER, 60.0).nodes
    assert watch.slowdowns == {"a": 1.0, "b": pytest.approx(0.25)}
    assert a.device.flops == b.device.flops, "nodes that have computed nothing are predicted as badly"


def test_slow_node_says_nothing_of_nodes_that_have_computed_nothing() -> None:
    watch = SlowdownWatch(MODEL)
    watch.follow(CLUSTER, 0.0)
    slow_down(watch)
    a, _ = watch.follow(CLUSTER, 60.0).nodes
    assert a == CLUSTER.nodes[0]

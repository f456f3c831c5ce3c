"""Pipelines that share nodes: what fits into leases, which leases fit each other, and what pipelines wait."""

from __future__ import annotations

import dataclasses
from math import nan

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parallax_cluster.placement.cost_model import CostModel
from parallax_cluster.placement.estimate import PlacementEstimator
from parallax_cluster.placement.leased import LeasedPipeline, check_shared, count_leased, has_leases, slow_down
from parallax_cluster.placement.pipeline import Pipeline
from parallax_core.contracts.placement import (
    ClusterProfile,
    PlacedStage,
    Placement,
    PlacementProblem,
    ServingGoal,
    StageLease,
)
from parallax_core.contracts.stage import LayerRange
from tests.support.clusters import GB, make_model, make_node

NODES = tuple(
    dataclasses.replace(node, leases=True)
    for node in (make_node("hub", 40, 20, 200), make_node("one", 40, 200, 2000), make_node("two", 40, 200, 2000))
)
GOAL = ServingGoal(concurrency=32, prompt_tokens=64, output_tokens=64)
PROBLEM = PlacementProblem(cluster=ClusterProfile(nodes=NODES), model=make_model(8), goal=GOAL)
COSTS = CostModel(PROBLEM)
HALF = LayerRange(0, 4)


def lease(number: int = 0, share: float = 0.5, holds: LayerRange = HALF) -> StageLease:
    return StageLease(number, holds, share)


def through_hub(other: int, has: StageLease | None) -> Pipeline:
    """Return a pipeline whose first half is on the hub."""
    return LeasedPipeline(COSTS, (0, other), (0, 4, 8), (has, None))


def place(*pipelines: Pipeline) -> Placement:
    return Placement(tuple(each.place() for each in pipelines))


def shared(*leases: StageLease | None, layers: LayerRange = HALF) -> Placement:
    """Return pipelines, not whole ones, that have these leases of one node."""
    return Placement(tuple((PlacedStage("hub", layers, each),) for each in leases))


@pytest.mark.parametrize(
    ("placement", "message"),
    [
        (shared(lease(0), None), "node 'hub' has more than one stage, and not a lease for each"),
        (shared(lease(1), lease(1)), "do not have a number each"),
        (shared(lease(-1)), "do not have a number each"),
        (shared(lease(0), lease(1, holds=LayerRange(0, 5))), "and the same layers to share"),
        (shared(lease(0, 0.75), lease(1, 0.5)), "take more than its memory, or none of it"),
        (shared(lease(0, 0.0)), "take more than its memory, or none of it"),
        (shared(lease(0, nan)), "take more than its memory, or none of it"),
        (shared(lease(0), layers=LayerRange(3, 5)), "has layers that the node does not hold"),
        (shared(lease(0, holds=LayerRange(1, 4))), "has layers that the node does not hold"),
    ],
)
def test_leases_that_do_not_fit_each_other_are_refused_by_name(placement: Placement, message: str) -> None:
    with pytest.raises(ValueError, match=message) as error:
        check_shared(placement)
    assert "'hub'" in str(error.value)


@pytest.mark.parametrize(
    "placement",
    [
        Placement(),
        shared(None),
        shared(lease(3, 1.0)),
        shared(*(lease(number, 1 / 3) for number in range(3))),
        shared(lease(0), lease(1), layers=LayerRange(1, 3)),
    ],
)
def test_leases_that_fit_each_other_are_accepted(placement: Placement) -> None:
    check_shared(placement)


def test_node_without_leases_cannot_be_shared() -> None:
    nodes = (dataclasses.replace(NODES[0], leases=False), *NODES[1:])
    problem = dataclasses.replace(PROBLEM, cluster=ClusterProfile(nodes=nodes))
    placement = place(through_hub(1, lease(0)), through_hub(2, lease(1)))
    assert PlacementEstimator(PROBLEM).estimate(placement).num_requests == GOAL.concurrency
    with pytest.raises(ValueError, match="node 'hub' has no leases"):
        PlacementEstimator(problem).estimate(placement)


def test_pipeline_keeps_its_leases_when_it_is_placed_and_read() -> None:
    placement = place(through_hub(1, lease(0)), through_hub(2, lease(1)))
    assert [stages[0].lease for stages in placement.pipelines] == [lease(0), lease(1)]
    assert [stages[1].lease for stages in placement.pipelines] == [None, None]
    assert has_leases(placement)
    assert place(*PlacementEstimator(PROBLEM).read_pipelines(placement)) == placement
    assert not has_leases(place(Pipeline(COSTS, (0,), (0, 8))))


@given(st.integers(0, 2), st.integers(0, 7), st.integers(1, 8), st.floats(0.01, 1.0))
def test_lease_of_all_the_memory_has_as_much_as_a_stage_and_parts_never_more(
    node: int, start: int, size: int, share: float
) -> None:
    stop = min(8, start + size)
    whole = count_leased(COSTS, node, (start, stop), lease(0, 1.0, LayerRange(start, stop)))
    assert whole == COSTS.count_fitting(node, start, stop) == count_leased(COSTS, node, (start, stop), None)
    halves = [lease(0, each, LayerRange(start, stop)) for each in (share, 1 - share)]
    parts = [count_leased(COSTS, node, (start, stop), each) for each in halves]
    assert sum(parts) <= whole
    held = count_leased(COSTS, node, (start, stop), lease(0, share, LayerRange(0, 8)))
    assert held <= parts[0], "layers that it does not use take memory as well"


def test_held_layers_that_do_not_fit_leave_no_room() -> None:
    small = dataclasses.replace(NODES[0], device=dataclasses.replace(NODES[0].device, memory=5 * GB))
    costs = CostModel(dataclasses.replace(PROBLEM, cluster=ClusterProfile(nodes=(small,))))
    assert count_leased(costs, 0, (0, 2), lease(0, 1.0, LayerRange(0, 4))) > 0
    assert count_leased(costs, 0, (0, 2), lease(0, 1.0, LayerRange(0, 6))) < 1


@pytest.mark.parametrize(("more", "fitting"), [(-1, -1.0), (0, 0.0)])
def test_memory_that_the_weights_fill_to_the_last_byte_has_room_for_no_request(more: int, fitting: float) -> None:
    weights = int(COSTS.measure_weights(0, 4))
    full = dataclasses.replace(NODES[0], device=dataclasses.replace(NODES[0].device, memory=weights + more))
    costs = CostModel(dataclasses.replace(PROBLEM, cluster=ClusterProfile(nodes=(full,))))
    assert count_leased(costs, 0, (0, 4), lease(0, 0.5, LayerRange(0, 4))) == fitting
    assert min(costs.count_fitting(0, 0, 4), 0) == fitting


def test_tied_embedding_of_a_node_that_holds_all_layers_counts_once() -> None:
    tied = dataclasses.replace(PROBLEM.model, shared=GB)
    costs = CostModel(dataclasses.replace(PROBLEM, model=tied))
    whole = lease(0, 1.0, LayerRange(0, 8))
    assert count_leased(costs, 0, (0, 8), whole) == costs.count_fitting(0, 0, 8)
    assert count_leased(costs, 0, (0, 8), whole) > count_leased(COSTS, 0, (0, 8), whole)


def estimate(num_hub: int, *, leases: bool = True) -> tuple[list[float], list[float]]:
    """Return the tokens per second of pipelines through the hub, as if alone and together."""
    has = [lease(number, 1 / num_hub) if leases else None for number in range(num_hub)]
    pipelines = [through_hub(1 + number, each) for number, each in enumerate(has)]
    costs = [each.measure(GOAL.concurrency // 2) for each in pipelines]
    slowed = slow_down(pipelines, costs, [cost.num_requests for cost in costs])
    return [cost.tokens_per_s for cost in costs], [cost.tokens_per_s for cost in slowed]


def test_pipeline_that_is_alone_is_as_fast_as_before() -> None:
    alone, slowed = estimate(1)
    assert slowed == pytest.approx(alone, rel=1e-9)


def test_pipelines_that_both_saturate_a_node_share_its_rate() -> None:
    alone, slowed = estimate(2)
    [cost] = [through_hub(1, lease()).measure(GOAL.concurrency // 2)]
    rate = GOAL.output_tokens / cost.stage_s[0]
    assert alone[0] == pytest.approx(rate, rel=0.1), "one alone keeps the node busy"
    assert sum(slowed) == pytest.approx(rate, rel=0.1)
    assert slowed[0] == pytest.approx(slowed[1])


def test_pipeline_without_requests_holds_nobody_up() -> None:
    problem = dataclasses.replace(PROBLEM, goal=dataclasses.replace(GOAL, concurrency=1))
    both = place(through_hub(1, lease(0)), through_hub(2, lease(1)))
    alone = place(through_hub(1, lease(0)))
    estimator = PlacementEstimator(problem)
    assert [each.num_requests for each in estimator.estimate(both).pipelines] in ([0, 1], [1, 0])
    assert estimator.estimate(both).tokens_per_s == pytest.approx(estimator.estimate(alone).tokens_per_s)


numbers = st.integers(1, 24)


@settings(deadline=None, max_examples=20)
@given(numbers, numbers, st.integers(1, 7))
def test_nobody_is_faster_for_sharing_and_no_node_passes_more_than_it_can(one: int, other: int, cut: int) -> None:
    holds = LayerRange(0, cut)
    pipelines = [
        LeasedPipeline(COSTS, (0, 1 + number), (0, cut, 8), (lease(number, 0.5, holds), None)) for number in range(2)
    ]
    costs = [pipeline.measure(num) for pipeline, num in zip(pipelines, (one, other), strict=True)]
    slowed = slow_down(pipelines, costs, [one, other])
    for before, after in zip(costs, slowed, strict=True):
        assert after.request_s >= before.request_s * (1 - 1e-9)
        assert after.tokens_per_s <= before.tokens_per_s * (1 + 1e-9)
        assert after.tokens_per_s * after.request_s == pytest.approx(before.tokens_per_s * before.request_s)
        assert after.stage_s == before.stage_s
    busy = sum(cost.num_requests * cost.stage_s[0] / cost.request_s for cost in slowed)
    assert busy <= 1.1, "the hub"


@settings(deadline=None, max_examples=13)
@given(numbers, numbers, numbers)
def test_more_requests_of_others_never_make_a_pipeline_faster(own: int, few: int, more: int) -> None:
    few, most = sorted((few, few + more))
    pipelines = [through_hub(1, lease(0)), through_hub(2, lease(1))]

    def measure(others: int) -> float:
        costs = [pipelines[0].measure(own), pipelines[1].measure(others)]
        return slow_down(pipelines, costs, [own, others])[0].tokens_per_s

    assert measure(most) <= measure(few) * 1.02

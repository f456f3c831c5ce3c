from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parallax_cluster.placement.cost_model import CostModel, count_batch
from parallax_core.contracts.placement import ClusterProfile, LayerDemand, LinkProfile, ModelDemand, PlacementProblem
from parallax_core.contracts.placement import ServingGoal as Goal
from tests.support.clusters import GB, make_model, make_node, make_problem

LINK = LinkProfile(ends=("", ""), round_trip_s=0.010, bandwidth=1e6)
LAYER = LayerDemand(weights=GB, read=GB, flops=GB, kv=1000)
MODEL = ModelDemand(layers=(LAYER,) * 4, hidden=1000)
GOAL = Goal(prompt_tokens=100, output_tokens=11, concurrency=4)


def make_costs(goal: Goal = GOAL, model: ModelDemand = MODEL, head: str = "") -> CostModel:
    nodes = (make_node("a", 10, 1, 100, "home"), make_node("b", 10, 2, 200))
    return CostModel(
        PlacementProblem(cluster=ClusterProfile(nodes=nodes, default_link=LINK, head=head), model=model, goal=goal)
    )


def test_stage_takes_the_longer_of_computing_and_reading() -> None:
    costs = make_costs()
    assert costs.measure_step(0, 0, 2, costs.sum_decode(1.0)) == pytest.approx((2e9 + 2 * 105.5e3) / 100e9)
    assert costs.measure_step(0, 0, 2, costs.prefill) == pytest.approx(100 * 2e9 / 1e12)


def test_overhead_of_a_device_counts_per_step_and_layer() -> None:
    costs = make_costs()
    costs.speeds[0] = costs.speeds[0]._replace(step_s=0.5, layer_s=0.25)
    costs.speeds[1] = costs.speeds[0]._replace(step_s=0.0, layer_s=0.0)
    sums = costs.sum_decode(1.0)
    assert costs.measure_step(0, 1, 3, sums) == pytest.approx(costs.measure_step(1, 1, 3, sums) + 1.0)


def test_single_request_alone_takes_the_sum_of_all_parts() -> None:
    cost = make_costs().measure_pipeline((0, 1), (0, 1, 4), 1)
    decode_s = (1e9 + 105.5e3) / 100e9 + 3 * (1e9 + 105.5e3) / 200e9
    hop_s = 0.005 + 1000 / 1e6
    whole_s = 0.1 + 0.15 + 0.005 + 0.1 + 0.005
    assert 0.15 < cost.ttft_s < whole_s, "in pieces, on both stages at once"
    assert cost.token_s == pytest.approx(decode_s + hop_s + 0.005)
    assert cost.request_s == pytest.approx(cost.ttft_s + 10 * cost.token_s)
    assert cost.tokens_per_s == pytest.approx(11 / cost.request_s)


def test_busy_pipeline_is_as_fast_as_its_busiest_stage() -> None:
    costs = make_costs(dataclasses.replace(GOAL, concurrency=1000))
    cost = costs.measure_pipeline((0, 1), (0, 3, 4), 1000)
    busy = max(*cost.stage_s, *cost.link_s) * 1000 / cost.request_s
    assert 0.85 < busy <= 1
    assert cost.tokens_per_s == pytest.approx(11 * 1000 / cost.request_s)


@pytest.mark.parametrize(("stages", "requests", "batch"), [(1, 8, 8), (2, 9, 4.5), (2, 2, 1), (4, 10, 2.5), (3, 1, 1)])
def test_requests_share_a_step_for_each_stage(stages: int, requests: int, batch: float) -> None:
    assert count_batch(stages, requests) == batch


def test_memory_holds_weights_and_the_requests_that_are_left_room_for() -> None:
    costs = make_costs()
    per_request = 2 * 111 * 1000 / 0.5
    assert costs.count_fitting(0, 0, 2) == 8e9 // per_request
    assert costs.count_fitting(0, 0, 4) == 6e9 // (2 * per_request)
    costs.speeds[0] = costs.speeds[0]._replace(memory=1.9e9)
    assert costs.count_fitting(0, 0, 2) < 1


def test_tied_embedding_is_held_once_by_a_stage_with_all_layers() -> None:
    costs = make_costs(model=dataclasses.replace(MODEL, shared=GB))
    costs.speeds[0] = costs.speeds[0]._replace(memory=3.5e9)
    assert costs.count_fitting(0, 0, 4) >= 1
    assert costs.count_fitting(0, 0, 3) >= 1
    costs.speeds[0] = costs.speeds[0]._replace(memory=2.9e9)
    assert costs.count_fitting(0, 0, 4) < 1
    assert costs.count_fitting(0, 0, 3) < 1


def test_step_reads_the_experts_that_its_tokens_are_expected_to_meet() -> None:
    sparse = dataclasses.replace(LAYER, read=0, experts=GB, num_experts=4, num_active_experts=1, kv=0)
    costs = make_costs(model=dataclasses.replace(MODEL, layers=(sparse,)))
    read = [costs.sum_decode(batch).bytes[-1] / GB for batch in (1.0, 2.0, 100.0)]
    assert read == pytest.approx([0.25, 1 - 0.75**2, 1.0])


def test_window_and_state_bound_what_a_long_context_takes() -> None:
    window = dataclasses.replace(LAYER, window=10)
    state = dataclasses.replace(LAYER, kv=0, state=5000)
    costs = make_costs(model=dataclasses.replace(MODEL, layers=(LAYER, window, state)))
    assert costs.kept == pytest.approx([0, 222e3, 242e3, 252e3])
    read = costs.sum_decode(1.0).bytes
    assert [read[1] - GB, read[2] - read[1] - GB, read[3] - read[2] - GB] == pytest.approx([105.5e3, 10e3, 5e3])


def test_borrowed_keys_are_read_and_take_no_memory() -> None:
    owner = dataclasses.replace(LAYER, read=0, flops=0)
    layers = (owner, dataclasses.replace(owner, kv=0, borrowed_kv=1000), owner, owner)
    costs = make_costs(model=dataclasses.replace(MODEL, layers=layers))
    for sums in (costs.sum_decode(3.0), costs.prefill):
        assert costs.measure_step(0, 0, 1, sums) == costs.measure_step(0, 1, 2, sums) > 0
    assert costs.kept[2] == costs.kept[1]


def test_output_head_computes_only_for_drawn_tokens() -> None:
    costs = make_costs(model=make_model(2, head_gb=1.0, kv=0))
    assert costs.prefill.flops[2] - costs.prefill.flops[1] - costs.prefill.flops[1] == pytest.approx(1e9)


def test_link_of_nodes_counts_before_that_of_their_sites() -> None:
    nodes = (make_node("a", site="x"), make_node("b", site="x"), make_node("c", site="y"))
    links = [("x", "x"), ("y", "x"), ("c", "a")]
    given = tuple(LinkProfile(ends=each, round_trip_s=rank, bandwidth=1) for rank, each in enumerate(links))
    cluster = ClusterProfile(nodes=nodes, links=given, default_link=LINK)
    costs = CostModel(PlacementProblem(cluster=cluster, model=MODEL))
    assert [costs.find_link(*ends).round_trip_s for ends in ((0, 1), (1, 2), (0, 2), (2, 0))] == [0, 1, 2, 2]


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ({("home", "laptop"): 4.0, ("home", "away"): 2.0}, 4.0),
        ({("desk", "away"): 3.0, ("home", "away"): 2.0}, 3.0),
        ({("desk", "away"): 3.0, ("home", "laptop"): 4.0}, 4.0),
        ({("desk", "laptop"): 5.0, ("home", "laptop"): 4.0}, 5.0),
        ({("home", "away"): 2.0}, 2.0),
        ({}, 1.0),
    ],
)
def test_link_of_a_site_and_a_node_counts_before_one_of_sites(
    given: dict[tuple[str, str], float], found: float
) -> None:
    links = tuple(LinkProfile(ends=ends, round_trip_s=time, bandwidth=1.0) for ends, time in given.items())
    default = dataclasses.replace(LINK, round_trip_s=1.0)
    nodes = (make_node("desk", 10, 1, 100, "home"), make_node("laptop", 10, 2, 200, "away"))
    for head in ("", "desk"):
        cluster = ClusterProfile(nodes=nodes, links=links, default_link=default, head=head)
        costs = CostModel(PlacementProblem(cluster=cluster, model=MODEL, goal=GOAL))
        assert [costs.find_link(*ends).round_trip_s for ends in ((0, 1), (1, 0))] == [found, found]
    assert costs.find_head_link(1).round_trip_s == found


@pytest.mark.parametrize(("head", "ways_s"), [("", 0.0), ("a", 0.0), ("b", 0.010), ("elsewhere", 0.010)])
def test_way_to_the_head_and_back_is_counted(head: str, ways_s: float) -> None:
    whole = make_costs().measure_pipeline((0,), (0, 4), 1).ttft_s
    assert make_costs(head=head).measure_pipeline((0,), (0, 4), 1).ttft_s == pytest.approx(whole + ways_s)


@given(st.integers(0, 10**6), st.integers(1, 40))
def test_another_request_hardly_lowers_the_throughput(seed: int, requests: int) -> None:
    """It may a little: it makes one of the steps among which requests are divided larger than the others."""
    costs = CostModel(make_problem(seed, 4))
    order = tuple(range(len(costs.nodes)))
    cuts = (*order, costs.num_layers)
    fewer, more = (costs.measure_pipeline(order, cuts, number) for number in (requests, requests + 1))
    assert more.tokens_per_s >= 0.75 * fewer.tokens_per_s
    assert more.request_s >= 0.65 * fewer.request_s


def test_single_stage_reads_its_weights_once_for_prompts_and_decodes() -> None:
    costs = make_costs(dataclasses.replace(GOAL, output_tokens=1, prompt_tokens=1))
    one, many = (costs.measure_pipeline((0,), (0, 4), number).request_s for number in (1, 8))
    assert many == pytest.approx(one, rel=0.1)


def test_pipelines_of_equal_machines_are_computed_once() -> None:
    nodes = (make_node("a", 20), make_node("b", 40), make_node("c", 40, tflops=10))
    costs = CostModel(PlacementProblem(cluster=ClusterProfile(nodes=nodes), model=MODEL, goal=GOAL))
    cuts = 0, costs.num_layers
    first = costs.measure_pipeline((0,), cuts, 4)
    assert costs.measure_pipeline((1,), cuts, 4) is first
    assert costs.measure_pipeline((2,), cuts, 4).request_s > first.request_s

from __future__ import annotations

from math import inf

import pytest

from parallax_cluster.placement.cost_model import CostModel
from parallax_core.base.errors import InvalidRequest
from parallax_core.contracts.placement import ClusterProfile, PlacementProblem, ServingGoal
from parallax_core.engine.options import HeadOptions
from parallax_simulate.pipeline import ExactPipeline, PipelineModel, SimulatedRequest
from parallax_simulate.trace import Arrival
from tests.support.clusters import make_model, make_node


def make_costs(num_nodes: int, concurrency: int = 1, num_layers: int = 8) -> CostModel:
    nodes = tuple(make_node(f"n{rank}", 40) for rank in range(num_nodes))
    goal = ServingGoal(prompt_tokens=512, output_tokens=64, concurrency=concurrency)
    return CostModel(PlacementProblem(cluster=ClusterProfile(nodes=nodes), model=make_model(num_layers), goal=goal))


def serve(pipeline: ExactPipeline, arrivals: list[Arrival], at: float = 0.0) -> dict[int, tuple[float, float, int]]:
    """Return the first and last time and the number of tokens of each request; all arrive at once, with new prompts."""
    found: dict[int, tuple[float, float, int]] = {}
    for number, arrival in enumerate(arrivals, round(at)):
        pipeline.submit(SimulatedRequest(number, arrival), at)
    while pipeline.next_at < inf:
        for drawn in pipeline.advance(pipeline.next_at):
            first, _, count = found.get(drawn.number, (drawn.at, 0.0, 0))
            found[drawn.number] = first, drawn.at, count + drawn.num_tokens
    return found


@pytest.mark.parametrize("num_stages", [1, 2, 4])
def test_lone_request_takes_as_long_as_planned(num_stages: int) -> None:
    costs = make_costs(num_stages)
    order, cuts = tuple(range(num_stages)), tuple(range(0, 9, 8 // num_stages))
    planned = costs.measure_pipeline(order, cuts, 1)
    pipeline = ExactPipeline(PipelineModel(costs, order, cuts), 4096)
    for begun in (0.0, 100.0, 200.0, 300.0, 400.0):  # the first few try sizes of pieces
        [(first, last, count)] = serve(pipeline, [Arrival(begun, 512, 64)], begun).values()
    assert count == 64
    assert first - begun == pytest.approx(planned.ttft_s, rel=0.02 if num_stages == 1 else 0.12)
    assert (last - first) / 63 == pytest.approx(planned.token_s, rel=0.02)


def test_equal_requests_at_once_reach_the_planned_throughput_on_one_stage() -> None:
    costs = make_costs(1, 32)
    planned = costs.measure_pipeline((0,), (0, 8), 32)
    pipeline = ExactPipeline(PipelineModel(costs, (0,), (0, 8)), 4096, HeadOptions(target_itl_s=inf))
    served = serve(pipeline, [Arrival(0.0, 512, 64)] * 32)
    speed = sum(count for _, _, count in served.values()) / max(last for _, last, _ in served.values())
    assert speed == pytest.approx(planned.tokens_per_s, rel=0.1)  # one wave of requests, and not a steady load


def test_request_that_was_begun_elsewhere_gets_the_rest_only() -> None:
    pipeline = ExactPipeline(PipelineModel(make_costs(1), (0,), (0, 8)), 4096)
    pipeline.submit(SimulatedRequest(0, Arrival(0.0, 100, 64), num_delivered=60), 0.0)
    told = []
    while pipeline.next_at < inf:
        told += pipeline.advance(pipeline.next_at)
    assert sum(drawn.num_tokens for drawn in told) == 4


def test_shared_prefix_is_computed_once() -> None:
    def measure(shared: int) -> float:
        pipeline = ExactPipeline(PipelineModel(make_costs(1), (0,), (0, 8)), 8192)
        serve(pipeline, [Arrival(0.0, 1600, 4, 0, shared)] * 8)
        return pipeline.busy_s[0]

    assert measure(1536) < 0.5 * measure(0)


def test_request_longer_than_the_context_is_refused() -> None:
    pipeline = ExactPipeline(PipelineModel(make_costs(1), (0,), (0, 8)), 256)
    with pytest.raises(InvalidRequest):
        pipeline.submit(SimulatedRequest(0, Arrival(0.0, 512, 64)), 0.0)

from __future__ import annotations

from dataclasses import replace
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parallax_cluster.placement.cost_model import CostModel
from parallax_cluster.placement.estimate import PlacementEstimator
from parallax_cluster.placement.policy import SearchPlacement
from parallax_core.base.errors import InvalidRequest, Overloaded, UsageError
from parallax_core.builtin.routing import LeastPendingTokens
from parallax_core.contracts.placement import ClusterProfile, LinkProfile, PlacementProblem, ServingGoal
from parallax_core.contracts.policy import RoutingPolicy
from parallax_core.engine.limits import Limits
from parallax_policies.least_finish import LeastFinishTime
from parallax_policies.routing import RoundRobin
from parallax_simulate.cluster import ChurnOptions
from parallax_simulate.coarse import CoarsePipeline
from parallax_simulate.pipeline import (
    ExactPipeline,
    PipelineModel,
    SimulatedPipeline,
    SimulatedRequest,
)
from parallax_simulate.report import LatencyLimits, SimulationReport
from parallax_simulate.run import SimulationOptions
from parallax_simulate.trace import Arrival, TraceOptions, make_trace, parse_length
from tests.support.clusters import make_model, make_node
from tests.support.simulation import simulate

NUM_ARRIVALS = 150
NEAR = LinkProfile(ends=("", ""), round_trip_s=0.002, bandwidth=1e9)


def make_pipelines(num_stages: int, memory_gb: float = 40, window: int = 0) -> tuple[ExactPipeline, CoarsePipeline]:
    """Return pipelines of one model; half of its layers have the window, if there is one."""
    model = make_pipeline_model(num_stages, memory_gb, window)
    return ExactPipeline(model, 4096), CoarsePipeline(model, 4096)


def make_pipeline_model(num_stages: int, memory_gb: float = 40, window: int = 0) -> PipelineModel:
    nodes = tuple(make_node(f"n{rank}", memory_gb, 20, 100 * (1 + rank)) for rank in range(num_stages))
    cluster = ClusterProfile(nodes=nodes, default_link=NEAR)
    demand = make_model(kv=2**15)
    layers = tuple(replace(layer, window=window * (rank % 2)) for rank, layer in enumerate(demand.layers))
    demand = replace(demand, layers=layers)
    costs = CostModel(PlacementProblem(cluster=cluster, model=demand, goal=ServingGoal()))
    return PipelineModel(costs, tuple(range(num_stages)), tuple(range(0, 9, 8 // num_stages)))


def make_arrivals(number: int, rate: float, seed: int, burst: int = 1) -> list[Arrival]:
    lengths = parse_length("16-900", "p"), parse_length("1-120", "o")
    options = TraceOptions(rate=rate, prompt=lengths[0], output=lengths[1], burst=burst, seed=seed)
    return list(make_trace(options, number))


def serve(pipeline: SimulatedPipeline, arrivals: list[Arrival]) -> list[tuple[float, float, int]]:
    """Return the first and last time and the number of tokens of each request."""
    found = [(inf, 0.0, 0)] * len(arrivals)
    left, now = list(enumerate(arrivals)), 0.0
    while left or pipeline.next_at < inf:
        if left and left[0][1].at <= pipeline.next_at:
            number, arrival = left.pop(0)
            now = max(now, arrival.at)
            told = pipeline.settle(now)
            pipeline.submit(SimulatedRequest(number, arrival), now)
        else:
            now = max(now, pipeline.next_at)
            told = pipeline.advance(now)
        for drawn in told:
            first, _, count = found[drawn.number]
            found[drawn.number] = min(first, drawn.at), drawn.at, count + drawn.num_tokens
    return found


@settings(deadline=None, max_examples=3)
@given(st.sampled_from([1, 2, 4]), st.integers(0, 10**6), st.floats(0.2, 3), st.sampled_from([1, 8]))
def test_pipeline_gives_each_request_the_times_of_the_head(stages: int, seed: int, rate: float, burst: int) -> None:
    exact, coarse = make_pipelines(stages)
    arrivals = make_arrivals(40, rate, seed, burst)
    for (first, last, count), (other_first, other_last, other_count) in zip(
        serve(exact, arrivals), serve(coarse, arrivals), strict=True
    ):
        assert other_count == count
        assert other_first == pytest.approx(first, rel=1e-6)
        assert other_last == pytest.approx(last, rel=1e-6)
    assert coarse.busy_s == pytest.approx(exact.busy_s, rel=1e-6)


@pytest.mark.parametrize("stages", [1, 4])
def test_times_are_those_of_the_head_while_answers_fill_a_window(stages: int) -> None:
    exact, coarse = make_pipelines(stages, window=500)
    arrivals = make_arrivals(40, 1.0, 2, burst=8)
    for times, other_times in zip(serve(exact, arrivals), serve(coarse, arrivals), strict=True):
        assert other_times == pytest.approx(times, rel=1e-9)


@pytest.mark.parametrize("stages", [1, 4])
def test_decodes_are_taken_together(stages: int) -> None:
    _, coarse = make_pipelines(stages)
    for number in range(stages):
        coarse.submit(SimulatedRequest(number, Arrival(0.0, 100, 80)), 0.0)
    num_events = 0
    while coarse.next_at < inf:
        coarse.advance(coarse.next_at)
        num_events += 1
    assert num_events < 20 * stages


@settings(deadline=None, max_examples=3)
@given(st.integers(0, 10**6), st.sampled_from([1, 2]))
def test_every_request_ends_when_memory_is_short(seed: int, stages: int) -> None:
    _, coarse = make_pipelines(stages, 8.7 / stages)
    assert coarse.max_length < 3000
    arrivals = make_arrivals(30, 5.0, seed)
    served = serve(coarse, arrivals)
    assert [count for _, _, count in served] == [arrival.output_tokens for arrival in arrivals]


def test_request_that_does_not_fit_is_refused() -> None:
    _, coarse = make_pipelines(1)
    with pytest.raises(InvalidRequest, match="too many"):
        coarse.submit(SimulatedRequest(0, Arrival(0.0, 4000, 97)), 0.0)


def test_request_beyond_the_limit_of_those_that_wait_is_refused() -> None:
    coarse = CoarsePipeline(make_pipeline_model(1), 4096, Limits(max_running=1, max_waiting=1))
    coarse.submit(SimulatedRequest(0, Arrival(0.0, 100, 10)), 0.0)
    coarse.submit(SimulatedRequest(1, Arrival(0.0, 100, 10)), 0.0)
    with pytest.raises(Overloaded):
        coarse.submit(SimulatedRequest(2, Arrival(0.0, 100, 10)), 0.0)


def simulate_cluster(policy: RoutingPolicy, seed: int, churn: ChurnOptions, *, is_coarse: bool) -> SimulationReport:
    nodes = tuple(make_node(f"n{rank}", memory, 20, 100) for rank, memory in enumerate((40, 40, 40, 5, 6)))
    problem = PlacementProblem(
        cluster=ClusterProfile(nodes=nodes, default_link=NEAR),
        model=make_model(),
        goal=ServingGoal(prompt_tokens=450, output_tokens=60, concurrency=16),
    )
    estimator = PlacementEstimator(problem)
    placement = SearchPlacement().place(problem, estimator)
    rate = 0.6 * estimator.estimate(placement).tokens_per_s / 60
    limits = LatencyLimits(max_ttft_s=1.0, max_token_s=0.15)
    options = SimulationOptions(routing=policy, churn=churn, limits=limits, is_coarse=is_coarse)
    return simulate(estimator, placement, make_arrivals(NUM_ARRIVALS, rate, seed), options)


@pytest.mark.parametrize(
    ("policy", "every_s"),
    [(LeastPendingTokens(), inf), (LeastFinishTime(), inf), (RoundRobin(), 40.0)],
)
def test_cluster_has_the_figures_of_the_exact_simulation(policy: RoutingPolicy, every_s: float) -> None:
    churn = ChurnOptions(every_s=every_s, down_s=10.0)
    exact, coarse = (simulate_cluster(policy, 1, churn, is_coarse=each) for each in (False, True))
    assert coarse.num_finished == exact.num_finished == NUM_ARRIVALS
    assert coarse.num_moved == exact.num_moved
    for name, figure in exact.describe().items():
        assert coarse.describe()[name] == pytest.approx(figure, rel=1e-6), name


def test_shared_prefixes_need_the_exact_simulation() -> None:
    problem = PlacementProblem(cluster=ClusterProfile(nodes=(make_node("a", 40),)), model=make_model())
    estimator = PlacementEstimator(problem)
    options = SimulationOptions(routing=RoundRobin(), is_coarse=True)
    with pytest.raises(UsageError, match="no prefix cache"):
        simulate(estimator, SearchPlacement().place(problem, estimator), [Arrival(0.0, 100, 4, 0, 50)], options)

from __future__ import annotations

from functools import partial

from hypothesis import given, settings
from hypothesis import strategies as st

from parallax_cluster.placement.cost_model import CostModel
from parallax_core.builtin.routing import LeastPendingTokens
from parallax_core.contracts.placement import ClusterProfile, PlacementProblem, ServingGoal
from parallax_core.contracts.policy import RoutingPolicy
from parallax_policies.least_finish import LeastFinishTime
from parallax_policies.routing import PrefixAffinity, RoundRobin
from parallax_simulate.cluster import ChurnOptions, ClusterSimulation
from parallax_simulate.group import LocalGroup
from parallax_simulate.pipeline import ExactPipeline, PipelineModel
from parallax_simulate.trace import Arrival, TraceOptions, make_trace, parse_length
from tests.support.clusters import make_model, make_node


def make_simulation(
    policy: RoutingPolicy, slow: tuple[float, ...], churn: ChurnOptions | None = None, *, has_prefixes: bool = False
) -> ClusterSimulation:
    """Return a simulation of nodes that hold the whole model."""
    nodes = tuple(make_node(f"n{rank}", 40) for rank in range(len(slow)))
    problem = PlacementProblem(cluster=ClusterProfile(nodes=nodes), model=make_model(), goal=ServingGoal())
    costs = CostModel(problem)
    models = [PipelineModel(costs, (rank,), (0, 8), slow) for rank in range(len(slow))]
    makers = {rank: partial(ExactPipeline, model, 4096) for rank, model in enumerate(models)}
    return ClusterSimulation([LocalGroup(makers)], policy, churn, has_prefixes=has_prefixes)


def make_arrivals(number: int, rate: float, shared: int = 0, seed: int = 0) -> list[Arrival]:
    lengths = parse_length("16-200", "p"), parse_length("1-40", "o")
    options = TraceOptions(rate=rate, prompt=lengths[0], output=lengths[1], shared_tokens=shared, groups=4, seed=seed)
    return list(make_trace(options, number))


@settings(deadline=None, max_examples=8)
@given(st.integers(0, 10**6), st.floats(0.5, 20), st.floats(0.5, 20))
def test_every_request_ends_with_all_its_tokens_also_under_losses(seed: int, every_s: float, down_s: float) -> None:
    simulation = make_simulation(
        LeastPendingTokens(), (1.0, 1.0, 2.0), ChurnOptions(every_s=every_s, down_s=down_s, seed=seed)
    )
    simulation.run(make_arrivals(40, 4.0, seed=seed))
    for record in simulation.records:
        assert record.is_over
        assert record.num_tokens == record.arrival.output_tokens
        assert record.arrival.at <= record.first <= record.last


def test_same_trace_gives_the_same_figures() -> None:
    one, other = (make_simulation(LeastFinishTime(), (1.0, 3.0), ChurnOptions(every_s=3)) for _ in range(2))
    one.run(make_arrivals(50, 5.0))
    other.run(make_arrivals(50, 5.0))
    assert [record.last for record in one.records] == [record.last for record in other.records]


def test_measured_speed_avoids_a_slow_node_that_the_plan_does_not_know() -> None:
    def serve(policy: RoutingPolicy) -> float:
        simulation = make_simulation(policy, (1.0, 1.0, 8.0))
        simulation.run(make_arrivals(200, 3.0))
        return sum(record.last - record.arrival.at for record in simulation.records)

    assert serve(LeastFinishTime()) < 0.7 * serve(LeastPendingTokens()) < serve(RoundRobin())


def test_prompts_that_share_a_prefix_go_where_it_is_cached() -> None:
    simulation = make_simulation(PrefixAffinity(), (1.0,) * 4, has_prefixes=True)
    arrivals = [Arrival(rank * 2.0, 1000, 4, rank % 2, 960) for rank in range(20)]
    simulation.run(arrivals)
    by_group = {group: {r.rank for r in simulation.records if r.arrival.group == group} for group in (0, 1)}
    assert all(len(ranks) == 1 for ranks in by_group.values())


def test_requests_wait_while_no_pipeline_is_left() -> None:
    simulation = make_simulation(LeastPendingTokens(), (1.0,), ChurnOptions(every_s=1, down_s=2))
    simulation.run(make_arrivals(60, 6.0))
    assert simulation.num_losses > 1
    assert all(record.is_over for record in simulation.records)
    assert any(record.num_moves for record in simulation.records)

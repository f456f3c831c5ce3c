from __future__ import annotations

from dataclasses import replace

import pytest

from parallax_cluster.placement.estimate import PlacementEstimator
from parallax_cluster.placement.policy import SearchPlacement
from parallax_core.base.errors import UsageError
from parallax_core.builtin.routing import LeastPendingTokens
from parallax_core.contracts.placement import ClusterProfile, PlacementProblem, ServingGoal
from parallax_simulate.cluster import REFUSED_S, ChurnOptions, ClusterSimulation
from parallax_simulate.run import SimulationOptions, make_source
from parallax_simulate.trace import Arrival
from parallax_simulate.view import render_report
from tests.support.clusters import make_model, make_node
from tests.support.simulation import simulate

NODES = (make_node("a", 40, site="one"), make_node("b", 40, site="two"))
OPTIONS = SimulationOptions(routing=LeastPendingTokens())


def make_estimator(num_users: int) -> PlacementEstimator:
    goal = ServingGoal(prompt_tokens=100, output_tokens=20, concurrency=num_users)
    return PlacementEstimator(PlacementProblem(cluster=ClusterProfile(nodes=NODES), model=make_model(), goal=goal))


def make_arrivals(number: int, output: int = 20) -> list[Arrival]:
    return [Arrival(1e6, 100, output + rank % 3) for rank in range(number)]


def run(num_users: int, arrivals: list[Arrival], churn: ChurnOptions | None = None) -> ClusterSimulation:
    estimator = make_estimator(num_users)
    source = make_source(estimator, SearchPlacement().place(estimator.costs.problem, estimator), OPTIONS)
    group = source.make_group(range(len(source.pipelines)))
    simulation = ClusterSimulation([group], LeastPendingTokens(), churn)
    simulation.run_closed(arrivals, num_users, group)
    return simulation


@pytest.mark.parametrize("num_users", [1, 3, 8])
def test_each_user_has_one_request_at_a_time_and_sends_the_next_at_once(num_users: int) -> None:
    records = run(num_users, make_arrivals(40)).records
    assert len(records) == 40
    assert all(record.is_over for record in records)
    times = sorted([(record.arrival.at, 1) for record in records] + [(record.last, -1) for record in records])
    at_once, most = 0, 0
    for _, change in times:
        at_once += change
        most = max(most, at_once)
    assert most == num_users
    ends = {0.0, *(record.last for record in records)}
    assert all(record.arrival.at in ends for record in records)


def test_losses_end_no_user() -> None:
    simulation = run(4, make_arrivals(60), ChurnOptions(every_s=1.0, down_s=0.5, seed=3))
    assert simulation.num_losses
    assert all(record.is_over for record in simulation.records)


@pytest.mark.parametrize("num_users", [1, 2, 8])
def test_speed_is_what_the_plan_predicts_for_as_many_requests(num_users: int) -> None:
    estimator = make_estimator(num_users)
    placement = SearchPlacement().place(estimator.costs.problem, estimator)
    report = simulate(estimator, placement, [Arrival(0.0, 100, 20)] * 200, replace(OPTIONS, num_users=num_users))
    assert report.tokens_per_s == pytest.approx(estimator.estimate(placement).tokens_per_s, rel=0.1)


def test_refused_requests_are_named_and_their_users_go_on() -> None:
    estimator = make_estimator(1)
    placement = SearchPlacement().place(estimator.costs.problem, estimator)
    arrivals = [Arrival(0.0, 100, 20), Arrival(0.0, 100_000, 20), Arrival(0.0, 100, 20)]
    options = replace(OPTIONS, num_users=1, context_length=1000)
    report = simulate(estimator, placement, arrivals, options)
    assert (report.num_finished, report.num_refused) == (2, 1)
    [refused] = report.refused
    assert refused == {"number": 1, "at": refused["at"], "prompt": 100_000, "output": 20}
    assert report.duration_s > REFUSED_S
    lines = list(render_report("model", estimator.estimate(placement), report))
    assert any(line.startswith("refused    number 1 at ") for line in lines)


def test_users_are_simulated_exactly() -> None:
    estimator = make_estimator(1)
    placement = SearchPlacement().place(estimator.costs.problem, estimator)
    with pytest.raises(UsageError, match="users are simulated exactly"):
        simulate(estimator, placement, make_arrivals(2), replace(OPTIONS, num_users=1, is_coarse=True))

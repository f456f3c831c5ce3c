from __future__ import annotations

import pytest

from parallax_cluster.placement.estimate import PlacementEstimator
from parallax_cluster.placement.policy import SearchPlacement
from parallax_core.builtin.routing import LeastPendingTokens
from parallax_core.contracts.placement import ClusterProfile, PlacementProblem
from parallax_simulate.report import LatencyLimits, SimulationReport
from parallax_simulate.run import SimulationOptions
from parallax_simulate.trace import Arrival
from tests.support.clusters import make_model, make_node
from tests.support.simulation import simulate


def run(num: int, max_ttft_s: float = 1e9, slow: float = 1.0) -> SimulationReport:
    nodes = (make_node("a", 40), make_node("b", 40))
    problem = PlacementProblem(cluster=ClusterProfile(nodes=nodes), model=make_model())
    estimator = PlacementEstimator(problem)
    options = SimulationOptions(
        routing=LeastPendingTokens(), slow={"a": slow}, limits=LatencyLimits(max_ttft_s=max_ttft_s)
    )
    arrivals = [Arrival(rank * 0.1, 100, 20) for rank in range(num)]
    return simulate(estimator, SearchPlacement().place(problem, estimator), arrivals, options)


def test_report_counts_requests_tokens_and_latencies() -> None:
    report = run(50)
    assert (report.num_requests, report.num_finished, report.num_refused, report.num_losses) == (50, 50, 0, 0)
    assert report.tokens_per_s * report.duration_s == pytest.approx(1000)
    assert report.goodput_share == 1.0
    assert report.ttft_s["p50"] <= report.ttft_s["p99"] < report.request_s["p50"]
    assert 0 < report.utilisation["least"] <= report.utilisation["mean"] <= report.utilisation["most"] <= 1


def test_goodput_counts_what_keeps_the_limits() -> None:
    every = run(50)
    some = run(50, max_ttft_s=every.ttft_s["p50"])
    assert 0.5 <= some.goodput_share < 1
    assert run(50, max_ttft_s=1e-9).goodput_requests_per_s == 0


def test_slow_node_makes_requests_longer() -> None:
    assert run(50, slow=4.0).request_s["mean"] > 1.5 * run(50).request_s["mean"]

"""Simulates a large cluster with the scheduler that serves, and compares the routing policies.

    python -m benchmarks.simulate --out benchmarks/results/simulate.json

- ``large``: the CPU time to place a model on ``--nodes`` unequal nodes, and to simulate ``--requests`` requests there.
- ``routing``: on random clusters of unequal nodes, at 60 % of the predicted throughput, the seconds of a request with
  each routing policy; in every second cluster, a tenth of the nodes is three times slower than its profile.

Everything but the CPU time is virtual, and the same on every machine.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.placement import make_large
from benchmarks.record import describe_run, read_report, write_report
from parallax_core.builtin.routing import LeastPendingTokens, PrefixAffinity, RoundRobin
from parallax_core.cluster.placement.estimate import PlacementEstimator
from parallax_core.cluster.placement.policy import SearchPlacement
from parallax_core.cluster.routing.policy import LeastFinishTime
from parallax_core.cluster.simulate.report import SimulationReport
from parallax_core.cluster.simulate.run import SimulationOptions, simulate
from parallax_core.cluster.simulate.trace import TraceOptions, make_trace, parse_length
from parallax_core.contracts.policy import RoutingPolicy

LOAD = 0.6
"""The share of the predicted throughput that arrives."""
SLOWDOWN, SLOW_EVERY = 3.0, 10
POLICIES: dict[str, RoutingPolicy] = {
    "least-pending-tokens": LeastPendingTokens(),
    "round-robin": RoundRobin(),
    "prefix-affinity": PrefixAffinity(),
    "least-finish-time:choices=2": LeastFinishTime(choices=2),
    "least-finish-time": LeastFinishTime(),
}


def run(
    seed: int, num_nodes: int, num_requests: int, routing: RoutingPolicy
) -> tuple[SimulationReport, dict[str, Any]]:
    """Return the report of a random cluster, and the CPU time that it took."""
    problem = make_large(seed, num_nodes)
    estimator, began = PlacementEstimator(problem), time.process_time()
    placement = SearchPlacement().place(problem, estimator)
    placed = time.process_time()
    rate = LOAD * estimator.estimate(placement).tokens_per_s / problem.goal.output_tokens
    options = TraceOptions(
        rate=rate, prompt=parse_length("64-960", "prompt"), output=parse_length("16-112", "output"), seed=seed
    )
    slow = {node.name: SLOWDOWN for node in problem.cluster.nodes[::SLOW_EVERY] if seed % 2}
    report = simulate(
        estimator, placement, make_trace(options, num_requests), SimulationOptions(routing=routing, slow=slow)
    )
    took = {"place_s": placed - began, "simulate_s": time.process_time() - placed}
    return report, {"pipelines": len(placement.pipelines), **took}


def compare_routing(seed: int) -> dict[str, Any]:
    """Return the mean and the 95th percentile of a request's seconds with each policy."""
    reports = {name: run(seed, 12 + 4 * seed, 1000, policy)[0] for name, policy in POLICIES.items()}
    return {
        name: {"mean_s": report.request_s["mean"], "p95_s": report.request_s["p95"], "ttft_p95_s": report.ttft_s["p95"]}
        for name, report in reports.items()
    }


def main(arguments: Sequence[str]) -> None:
    """Run the comparisons that the report does not have, print the figures, and write the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=10_000)
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--clusters", type=int, default=10, help="clusters to compare routing policies on")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args(arguments)
    report = {**read_report(given.out), **describe_run(["benchmarks.simulate"])}
    cases = report.setdefault("routing", {})
    for seed in range(given.clusters):
        if str(seed) not in cases:
            cases[str(seed)] = compare_routing(seed)
            write_report(given.out, report)
    for name in POLICIES:
        ratios = [case[name]["mean_s"] / case["least-pending-tokens"]["mean_s"] for case in cases.values()]
        print(f"{name}: {statistics.geometric_mean(ratios):.3f} of the default's seconds; the most {max(ratios):.3f}")
    if "large" not in report:
        figures, took = run(1, given.nodes, given.requests, LeastFinishTime())
        report["large"] = {"nodes": given.nodes, **took, **figures.describe()}
        write_report(given.out, report)
    large = report["large"]
    print(
        f"{large['nodes']} nodes, {large['num_requests']} requests: placed in {large['place_s']:.1f} s, simulated in "
        f"{large['simulate_s']:.0f} s of CPU time; {large['num_finished']} finished"
    )


if __name__ == "__main__":
    main(sys.argv[1:])

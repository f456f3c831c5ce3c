"""Simulates a large cluster with the scheduler that serves, and compares the routing policies.

    python -m benchmarks.simulate --out benchmarks/results/simulate.json

- ``coarse``: on random clusters of unequal nodes, by how much the figures of a coarse simulation differ from those of
  an exact one. The goal is 5 %.
- ``large``: the CPU time to place a model on ``--nodes`` unequal nodes, and to simulate ``--requests`` requests there,
  coarsely; exactly with ``--exact``.
- ``routing``: on random clusters of unequal nodes, at 60 % of the predicted throughput, the seconds of a request with
  each routing policy; in every second cluster, a tenth of the nodes is three times slower than its profile.

Everything but the CPU time is virtual, and the same on every machine. Finished parts are kept in ``--out``.
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
    seed: int, size: tuple[int, int], routing: RoutingPolicy, *, is_coarse: bool = False
) -> tuple[SimulationReport, dict[str, Any]]:
    """Return the report of a random cluster with a number of nodes and of requests, and the CPU time that it took."""
    num_nodes, num_requests = size
    problem = make_large(seed, num_nodes)
    estimator, began = PlacementEstimator(problem), time.process_time()
    placement = SearchPlacement().place(problem, estimator)
    placed = time.process_time()
    rate = LOAD * estimator.estimate(placement).tokens_per_s / problem.goal.output_tokens
    options = TraceOptions(
        rate=rate, prompt=parse_length("64-960", "prompt"), output=parse_length("16-112", "output"), seed=seed
    )
    slow = {node.name: SLOWDOWN for node in problem.cluster.nodes[::SLOW_EVERY] if seed % 2}
    simulated = SimulationOptions(routing=routing, slow=slow, is_coarse=is_coarse)
    report = simulate(estimator, placement, make_trace(options, num_requests), simulated)
    took = {"place_s": placed - began, "simulate_s": time.process_time() - placed}
    return report, {"pipelines": len(placement.pipelines), **took}


def compare_routing(seed: int) -> dict[str, Any]:
    """Return the mean and the 95th percentile of a request's seconds with each policy."""
    reports = {name: run(seed, (12 + 4 * seed, 1000), policy)[0] for name, policy in POLICIES.items()}
    return {
        name: {"mean_s": report.request_s["mean"], "p95_s": report.request_s["p95"], "ttft_p95_s": report.ttft_s["p95"]}
        for name, report in reports.items()
    }


def compare_coarse(seed: int) -> dict[str, Any]:
    """Return by how much each figure of a coarse simulation is above that of an exact one, and the CPU time of both."""
    size, policy = (12 + 8 * seed, 2000), LeastFinishTime() if seed % 2 else LeastPendingTokens()
    (exact, took), (coarse, coarse_took) = (run(seed, size, policy, is_coarse=each) for each in (False, True))
    errors = {
        f"{name} {key}": found / getattr(exact, name)[key] - 1
        for name in ("ttft_s", "token_s", "request_s")
        for key, found in getattr(coarse, name).items()
    }
    errors["tokens_per_s"] = coarse.tokens_per_s / exact.tokens_per_s - 1
    errors["busy"] = coarse.utilisation["mean"] / exact.utilisation["mean"] - 1
    return {"errors": errors, "exact_s": took["simulate_s"], "coarse_s": coarse_took["simulate_s"]}


def main(arguments: Sequence[str]) -> None:
    """Run the comparisons that the report does not have, print the figures, and write the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=10_000)
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--clusters", type=int, default=10, help="clusters to compare routing policies on")
    parser.add_argument("--exact", action="store_true", help="simulate the large cluster exactly")
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
    compared = report.setdefault("coarse", {})
    for seed in range(given.clusters):
        if str(seed) not in compared:
            compared[str(seed)] = compare_coarse(seed)
            write_report(given.out, report)
    worst = [max(each["errors"].items(), key=lambda pair: abs(pair[1])) for each in compared.values()]
    if worst:
        name, error = max(worst, key=lambda pair: abs(pair[1]))
        print(f"coarse: the figures of {len(worst)} clusters are within {abs(error):.1%}, which is {name}")
    if "large" not in report:
        figures, took = run(1, (given.nodes, given.requests), LeastFinishTime(), is_coarse=not given.exact)
        report["large"] = {"nodes": given.nodes, **took, **figures.describe()}
        write_report(given.out, report)
    large = report["large"]
    print(
        f"{large['nodes']} nodes, {large['num_requests']} requests: placed in {large['place_s']:.1f} s, simulated in "
        f"{large['simulate_s']:.0f} s of CPU time; {large['num_finished']} finished"
    )


if __name__ == "__main__":
    main(sys.argv[1:])

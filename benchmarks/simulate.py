"""Simulates a large cluster with the scheduler that serves, and compares the routing policies.

    python -m benchmarks.simulate --out benchmarks/results/simulate.json

- ``coarse``: on random clusters of unequal nodes, by how much the figures of a coarse simulation differ from those of
  an exact one. The goal is 5 %.
- ``large``: the time to place a model on ``--nodes`` unequal nodes, and to simulate ``--requests`` requests there,
  coarsely, in ``--processes`` processes; the time to simulate the first ``--exact`` of them with the scheduler that
  serves, and how far the figures of a coarse simulation differ from those.
- ``routing``: on random clusters of unequal nodes, at 60 % of the predicted throughput, the seconds of a request with
  each routing policy; in every second cluster, a tenth of the nodes is three times slower than its profile.

Everything but the times that it takes is virtual, and the same on every machine. Finished parts are kept in ``--out``.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.placement import make_large
from benchmarks.record import describe_run, read_report, write_report
from parallax_core.base.machine import Machine
from parallax_core.builtin.routing import LeastPendingTokens, PrefixAffinity, RoundRobin
from parallax_core.cli.progress import make_display
from parallax_core.cluster.placement.estimate import PlacementEstimator
from parallax_core.cluster.placement.policy import SearchPlacement
from parallax_core.cluster.routing.policy import LeastFinishTime
from parallax_core.contracts.placement import Placement
from parallax_core.contracts.policy import RoutingPolicy
from parallax_simulate.processes import open_groups
from parallax_simulate.report import SimulationReport
from parallax_simulate.run import SimulationOptions, make_source, run_groups
from parallax_simulate.trace import Arrival, TraceOptions, make_trace, parse_length

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


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """A random cluster with a placement, and the requests that arrive there."""

    estimator: PlacementEstimator
    placement: Placement
    arrivals: Sequence[Arrival]
    slow: Mapping[str, float]
    place_s: float
    """The CPU time of the placement."""

    def run(
        self, routing: RoutingPolicy, *, is_coarse: bool = False, most: int | None = None, num_processes: int = 1
    ) -> tuple[SimulationReport, float]:
        """Return the report of the first ``most`` requests, or of all, and the seconds that it took."""
        began = time.perf_counter()
        options = SimulationOptions(routing=routing, slow=self.slow, is_coarse=is_coarse)
        source = make_source(self.estimator, self.placement, options)
        with make_display() as progress, open_groups(source, num_processes) as groups:
            report = run_groups(groups, self.arrivals[:most], options, progress)
        return report, time.perf_counter() - began


def make_case(seed: int, num_nodes: int, num_requests: int) -> Case:
    """Return a random cluster at `LOAD`."""
    problem = make_large(seed, num_nodes)
    estimator, began = PlacementEstimator(problem), time.process_time()
    placement = SearchPlacement().place(problem, estimator)
    place_s = time.process_time() - began
    rate = LOAD * estimator.estimate(placement).tokens_per_s / problem.goal.output_tokens
    options = TraceOptions(
        rate=rate, prompt=parse_length("64-960", "prompt"), output=parse_length("16-112", "output"), seed=seed
    )
    return Case(
        estimator=estimator,
        placement=placement,
        arrivals=list(make_trace(options, num_requests)),
        slow={node.name: SLOWDOWN for node in problem.cluster.nodes[::SLOW_EVERY] if seed % 2},
        place_s=place_s,
    )


def compare_routing(seed: int, num_processes: int) -> dict[str, Any]:
    """Return the mean and the 95th percentile of a request's seconds with each policy."""
    case = make_case(seed, 12 + 4 * seed, 1000)
    reports = {name: case.run(policy, num_processes=num_processes)[0] for name, policy in POLICIES.items()}
    return {
        name: {"mean_s": report.request_s["mean"], "p95_s": report.request_s["p95"], "ttft_p95_s": report.ttft_s["p95"]}
        for name, report in reports.items()
    }


def compare_coarse(
    case: Case, routing: RoutingPolicy, num_processes: int, most: int | None = None
) -> tuple[SimulationReport, dict[str, Any]]:
    """Return the exact report; and by how much each figure of a coarse one is above it, and the seconds of both."""
    (exact, exact_s), (coarse, coarse_s) = (
        case.run(routing, is_coarse=each, most=most, num_processes=num_processes) for each in (False, True)
    )
    errors = {
        f"{name} {key}": found / getattr(exact, name)[key] - 1
        for name in ("ttft_s", "token_s", "request_s")
        for key, found in getattr(coarse, name).items()
    }
    errors["tokens_per_s"] = coarse.tokens_per_s / exact.tokens_per_s - 1
    errors["busy"] = coarse.utilisation["mean"] / exact.utilisation["mean"] - 1
    return exact, {"requests": exact.num_requests, "errors": errors, "exact_s": exact_s, "coarse_s": coarse_s}


def measure_large(num_nodes: int, num_requests: int, num_exact: int, num_processes: int) -> dict[str, Any]:
    """Return the figures and the times of a large cluster."""
    case, policy = make_case(1, num_nodes, num_requests), LeastFinishTime()
    pipelines = Counter(len(stages) for stages in case.placement.pipelines)
    report, compared = compare_coarse(case, policy, num_processes, num_exact)
    coarse_s = compared["coarse_s"]
    if num_exact < num_requests:
        report, coarse_s = case.run(policy, is_coarse=True, num_processes=num_processes)
    return {
        "nodes": num_nodes,
        "pipelines_by_stages": {str(stages): pipelines[stages] for stages in sorted(pipelines)},
        "processes": num_processes,
        "place_s": case.place_s,
        "compared": compared,
        "coarse_s": coarse_s,
        **report.describe(),
    }


def find_worst(errors: Mapping[str, float]) -> tuple[str, float]:
    """Return the figure that differs most."""
    return max(errors.items(), key=lambda pair: abs(pair[1]))


def print_large(large: Mapping[str, Any]) -> None:
    """Print what `measure_large` returned."""
    compared, processes = large["compared"], large["processes"]
    name, error = find_worst(compared["errors"])
    print(f"{large['nodes']} nodes: placed in {large['place_s']:.1f} s of CPU time")
    print(f"{large['num_requests']} requests: coarsely in {large['coarse_s']:.0f} s by {processes} processes")
    print(f"{compared['requests']} requests: exactly in {compared['exact_s']:.0f} s, coarsely in ", end="")
    print(f"{compared['coarse_s']:.0f} s; the figures are within {abs(error):.1e}, which is {name}")


def main(arguments: Sequence[str]) -> None:
    """Run the comparisons that the report does not have, print the figures, and write the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=10_000)
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--exact", type=int, default=100_000, help="so many of them are simulated exactly too")
    parser.add_argument("--processes", type=int, default=Machine().count_cores())
    parser.add_argument("--clusters", type=int, default=10, help="clusters to compare on")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args(arguments)
    report = {**read_report(given.out), **describe_run(["benchmarks.simulate"])}
    cases = report.setdefault("routing", {})
    for seed in range(given.clusters):
        if str(seed) not in cases:
            cases[str(seed)] = compare_routing(seed, given.processes)
            write_report(given.out, report)
    for name in POLICIES if cases else ():
        ratios = [case[name]["mean_s"] / case["least-pending-tokens"]["mean_s"] for case in cases.values()]
        print(f"{name}: {statistics.geometric_mean(ratios):.3f} of the default's seconds; the most {max(ratios):.3f}")
    compared = report.setdefault("coarse", {})
    for seed in range(given.clusters):
        if str(seed) not in compared:
            case = make_case(seed, 12 + 8 * seed, 2000)
            policy = LeastFinishTime() if seed % 2 else LeastPendingTokens()
            _, compared[str(seed)] = compare_coarse(case, policy, given.processes)
            write_report(given.out, report)
    if compared:
        name, error = max((find_worst(each["errors"]) for each in compared.values()), key=lambda pair: abs(pair[1]))
        print(f"coarse: the figures of {len(compared)} clusters are within {abs(error):.1e}, which is {name}")
    if "large" not in report:
        report["large"] = measure_large(given.nodes, given.requests, given.exact, given.processes)
        write_report(given.out, report)
    print_large(report["large"])


if __name__ == "__main__":
    main(sys.argv[1:])

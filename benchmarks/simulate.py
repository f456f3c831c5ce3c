"""Simulates a large cluster with the scheduler that serves, and compares the routing policies.

    python -m benchmarks.simulate --out benchmarks/results/simulate.json

- ``routing``: on random clusters of unequal nodes, at 60 % of the predicted throughput, the seconds of a request with
  each routing policy; in every second cluster, a tenth of the nodes is three times slower than its profile.
- ``coarse``: on random clusters, by how much the figures of a coarse simulation differ from those of an exact one. The
  goal is 5 %.
- ``large``: the time to place a model on ``--nodes`` unequal nodes, and to simulate ``--requests`` requests there,
  coarsely, in ``--processes`` processes; and the first ``--exact`` of them with the scheduler that serves.

Everything but the times that it takes is virtual, and the same on every machine. Finished parts are kept in ``--out``.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.placement import make_large
from benchmarks.record import describe_run, make_parser, read_report, write_report
from parallax_cluster.placement.estimate import PlacementEstimator
from parallax_cluster.placement.policy import SearchPlacement
from parallax_core.base.machine import Machine
from parallax_core.builtin.routing import LeastPendingTokens
from parallax_core.cli.progress import make_display
from parallax_core.contracts.placement import Placement
from parallax_core.contracts.policy import RoutingPolicy
from parallax_policies.least_finish import LeastFinishTime
from parallax_policies.routing import PrefixAffinity, RoundRobin
from parallax_simulate.processes import open_groups
from parallax_simulate.report import SimulationReport
from parallax_simulate.run import SimulationOptions, make_source, run_groups
from parallax_simulate.trace import Arrival, TraceOptions, make_trace, parse_length

LOAD = 0.6  # of the predicted throughput
SLOWDOWN, SLOW_EVERY = 3.0, 10
POLICIES: dict[str, RoutingPolicy] = {
    "least-pending-tokens": LeastPendingTokens(),
    "round-robin": RoundRobin(),
    "prefix-affinity": PrefixAffinity(),
    "least-finish-time:choices=2": LeastFinishTime(choices=2),
    "least-finish-time": LeastFinishTime(),
}
Figures = dict[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """A random cluster with a placement, and the requests that arrive there."""

    estimator: PlacementEstimator
    placement: Placement
    arrivals: Sequence[Arrival]
    slow: Mapping[str, float]
    place_s: float
    """The CPU time of the placement."""
    processes: int

    def run(
        self, routing: RoutingPolicy, *, is_coarse: bool = False, most: int | None = None
    ) -> tuple[SimulationReport, float]:
        """Return the report of the first ``most`` requests, or of all, and the seconds that it took."""
        began = time.perf_counter()
        options = SimulationOptions(routing=routing, slow=self.slow, is_coarse=is_coarse)
        source = make_source(self.estimator, self.placement, options)
        with make_display() as progress, open_groups(source, self.processes) as groups:
            report = run_groups(groups, self.arrivals[:most], options, progress)
        return report, time.perf_counter() - began


def make_case(seed: int, num_nodes: int, num_requests: int, processes: int) -> Case:
    problem = make_large(seed, num_nodes)
    estimator, began = PlacementEstimator(problem), time.process_time()
    placement = SearchPlacement().place(problem, estimator)
    place_s = time.process_time() - began
    rate = LOAD * estimator.estimate(placement).tokens_per_s / problem.goal.output_tokens
    prompt, output = parse_length("64-960", "prompt"), parse_length("16-112", "output")
    arrivals = list(make_trace(TraceOptions(rate=rate, prompt=prompt, output=output, seed=seed), num_requests))
    slow = {node.name: SLOWDOWN for node in problem.cluster.nodes[::SLOW_EVERY] if seed % 2}
    return Case(
        estimator=estimator, placement=placement, arrivals=arrivals, slow=slow, place_s=place_s, processes=processes
    )


def compare_routing(seed: int, processes: int) -> Figures:
    case = make_case(seed, 12 + 4 * seed, 1000, processes)
    reports = {name: case.run(policy)[0] for name, policy in POLICIES.items()}
    return {
        name: {"mean_s": report.request_s["mean"], "p95_s": report.request_s["p95"], "ttft_p95_s": report.ttft_s["p95"]}
        for name, report in reports.items()
    }


def compare_coarse(case: Case, routing: RoutingPolicy, most: int | None = None) -> Figures:
    """Return by how much each figure of a coarse simulation is above that of an exact one, and the seconds of both."""
    (exact, exact_s), (coarse, coarse_s) = (case.run(routing, is_coarse=each, most=most) for each in (False, True))
    errors = {
        f"{name} {key}": found / getattr(exact, name)[key] - 1
        for name in ("ttft_s", "token_s", "request_s")
        for key, found in getattr(coarse, name).items()
    }
    errors["tokens_per_s"] = coarse.tokens_per_s / exact.tokens_per_s - 1
    errors["busy"] = coarse.utilisation["mean"] / exact.utilisation["mean"] - 1
    return {"requests": exact.num_requests, "errors": errors, "exact_s": exact_s, "coarse_s": coarse_s}


def measure_large(options: argparse.Namespace) -> Figures:
    case, policy = make_case(1, options.nodes, options.requests, options.processes), LeastFinishTime()
    compared = compare_coarse(case, policy, options.exact)
    report, coarse_s = case.run(policy, is_coarse=True)
    times = {"place_s": case.place_s, "compared": compared, "coarse_s": coarse_s}
    return {"nodes": options.nodes, "processes": options.processes, **times, **report.describe()}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the comparisons that the report does not have, print the figures, and write the report."""
    parser = make_parser(__doc__)
    parser.add_argument("--nodes", type=int, default=10_000)
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--exact", type=int, default=100_000, help="so many of them are simulated exactly too")
    parser.add_argument("--processes", type=int, default=Machine().count_cores())
    parser.add_argument("--clusters", type=int, default=10, help="clusters to compare on")
    given = parser.parse_args(arguments)
    report = {**read_report(given.out), **describe_run(["benchmarks.simulate"])}

    def note(part: str, name: str, found: Figures) -> None:
        report.setdefault(part, {})[name] = found
        write_report(given.out, report)
        print(part, name, found, flush=True)

    for seed in range(given.clusters):
        if str(seed) not in report.get("routing", {}):
            note("routing", str(seed), compare_routing(seed, given.processes))
        if str(seed) not in report.get("coarse", {}):
            policy = LeastFinishTime() if seed % 2 else LeastPendingTokens()
            case = make_case(seed, 12 + 8 * seed, 2000, given.processes)
            note("coarse", str(seed), compare_coarse(case, policy))
    if "large" not in report:
        report["large"] = measure_large(given)
        write_report(given.out, report)
    print(report["large"])


if __name__ == "__main__":
    main()

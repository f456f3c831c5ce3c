"""Compares placements with the exact optimum, with the baselines, and with time limits.

    python -m benchmarks.placement --out benchmarks/results/placement.json

- ``optimum``: on random problems of at most ``--nodes`` nodes, the share of the exact optimum that the search reaches;
  `tests.support.optimum.find_optimum` tries every set, order, range and division of requests. The goals are 0.95 for
  each problem and 0.99 for the median.
- ``baselines``: on random clusters of 8 to 40 nodes, the predicted tokens per second compared with the policies
  ``greedy`` and ``water-filling``. The goal is never below 1.
  No idle node may raise it by more than 1 %, alone or at any place of the pipelines.
- ``time``: seconds of CPU time for 64 and 1,000 nodes, on the slowest of three clusters. The goals are 0.2 and 1.

Finished problems are kept in ``--out``: a run that was ended, or that ``--seconds`` ends, continues where it was.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from math import inf
from random import Random
from typing import Any

from benchmarks.record import describe_run, make_parser, read_report, write_report
from parallax_cluster.placement.baselines import GreedyPlacement, WaterFillingPlacement
from parallax_cluster.placement.estimate import PlacementEstimator
from parallax_cluster.placement.idle_use import IdleUses
from parallax_cluster.placement.policy import SearchPlacement
from parallax_cluster.placement.seeds import can_hold
from parallax_cluster.placement.shares import rate_pipelines
from parallax_cluster.placement.stage_table import Effort
from parallax_core.contracts.placement import ClusterProfile, Placement, PlacementPolicy, PlacementProblem, ServingGoal
from tests.support.clusters import make_model, make_node, make_problem
from tests.support.optimum import find_optimum

GOAL_EACH, GOAL_MEDIAN, GOAL_HELP = 0.95, 0.99, 0.01
GOALS_S = {64: 0.2, 1000: 1.0}
BASELINES: dict[str, PlacementPolicy] = {"greedy": GreedyPlacement(), "water-filling": WaterFillingPlacement()}
Figures = dict[str, Any]


def compare_optimum(seed: int, known: Figures, most_nodes: int) -> Figures:
    """Return the share of the optimum that the search reaches on one random problem; ``known`` may have the optimum."""
    problem = make_problem(seed, most_nodes)
    best = known["optimum"] if "optimum" in known else find_optimum(problem)
    estimator = PlacementEstimator(problem)
    found = estimator.estimate(SearchPlacement().place(problem, estimator))
    if not best:
        share = 1.0 if not found.num_requests else 0.0
    elif problem.goal.objective == "throughput":
        share = found.tokens_per_s / best
    else:
        share = best / found.response_s if found.num_requests else 0.0
    nodes = len(problem.cluster.nodes)
    return {"share": share, "optimum": best, "nodes": nodes, "objective": problem.goal.objective}


def make_large(seed: int, num_nodes: int) -> PlacementProblem:
    """Return a cluster of unequal nodes, some of which hold the whole model, with 4 requests for each node."""
    random = Random(seed)
    nodes = tuple(
        make_node(
            f"node {rank}",
            random.choice([6, 8, 12, 16, 24, 48]),
            random.choice([5, 20, 40, 80, 160]),
            random.choice([60, 100, 250, 400, 900]),
            random.choice(["home", "office", "lab"]),
        )
        for rank in range(num_nodes)
    )
    model = make_model(random.choice([24, 32, 48]), random.choice([0.25, 0.5, 1.0]), random.choice([2048, 8192]))
    goal = ServingGoal(concurrency=4 * num_nodes)
    return PlacementProblem(cluster=ClusterProfile(nodes=nodes), model=model, goal=goal)


def compare_baselines(seed: int, known: Figures) -> Figures:
    """Return the speed of the search and of the baselines on a random cluster, and idle nodes that would help."""
    problem = make_large(seed, 8 + seed * 7 % 33)
    estimator = PlacementEstimator(problem)
    placement = SearchPlacement().place(problem, estimator)
    speeds = known.get("tokens_per_s", {}) | {"search": estimator.estimate(placement).tokens_per_s}
    for name, policy in BASELINES.items():
        if name not in speeds:
            speeds[name] = estimator.estimate(policy.place(problem, estimator)).tokens_per_s
    best = max(speeds[name] for name in BASELINES)
    idle = len(problem.cluster.nodes) - sum(map(len, placement.pipelines))
    gain = speeds["search"] / best if best else None
    return {"tokens_per_s": speeds, "gain": gain, "idle": idle, "most_help": measure_help(estimator, placement)}


def measure_help(estimator: PlacementEstimator, placement: Placement) -> float:
    """Return the largest share of the tokens per second that any idle node would add; below 0: all would take some."""
    costs, pipelines = estimator.costs, estimator.read_pipelines(placement)
    uses, (now, _) = IdleUses(costs, Effort(sys.maxsize)), rate_pipelines(pipelines, costs.goal)
    used = {node for pipeline in pipelines for node in pipeline.order}
    idle = [node for node in range(len(costs.nodes)) if node not in used and can_hold(costs, node)]
    found = [use for node in idle if (use := uses.find_best(node, pipelines))]
    return max((rating[0] / now - 1 for rating, _ in found), default=0.0)


def measure_time(num_nodes: int) -> float:
    """Return the seconds of CPU time to place a model on the slowest of three clusters, the less of two runs each."""

    def place(problem: PlacementProblem) -> float:
        estimator, began = PlacementEstimator(problem), time.process_time()
        SearchPlacement().place(problem, estimator)
        return time.process_time() - began

    return max(min(place(make_large(seed, num_nodes)) for _ in range(2)) for seed in range(3))


def run_cases(
    report: Figures, name: str, run: Callable[[int, Figures], Figures], options: argparse.Namespace
) -> list[Any]:
    """Run the cases that the report does not have, saving it from time to time; return all that there are then."""
    cases, began = report.setdefault(name, {}), time.monotonic()
    for seed in range(options.problems if name.startswith("optimum") else options.clusters):
        case = cases.get(str(seed), {})
        if case.get("run") != options.run and time.monotonic() - began < options.seconds:
            cases[str(seed)] = {**run(seed, case), "run": options.run}
            if seed % 10 == 9:
                write_report(options.out, report)
    return [case for case in cases.values() if case["run"] == options.run]


def main() -> None:
    """Run the comparisons, print the figures, and write the report."""
    parser = make_parser(__doc__)
    parser.add_argument("--problems", type=int, default=500, help="problems to compare with the optimum")
    parser.add_argument("--nodes", type=int, default=6, help="the most nodes of these problems")
    parser.add_argument("--clusters", type=int, default=200, help="clusters to compare with the baselines")
    parser.add_argument("--seconds", type=float, default=inf, help="the most seconds for each comparison")
    parser.add_argument("--run", type=int, default=1, help="another number runs all searches again; optima are kept")
    parser.add_argument("--without-time", action="store_true", help="leave out the times, which need a quiet machine")
    given = parser.parse_args()
    report = {**read_report(given.out), **describe_run(["benchmarks.placement", "--nodes", str(given.nodes)])}
    optima = run_cases(report, f"optimum {given.nodes}", partial(compare_optimum, most_nodes=given.nodes), given)
    rivals = run_cases(report, "baselines", compare_baselines, given)
    shares = [case["share"] for case in optima]
    gains = [case["gain"] for case in rivals if case["gain"] is not None]
    figures = {
        "optimum": {"problems": len(shares), "least": min(shares), "median": statistics.median(shares)},
        "gain": {"clusters": len(rivals), "least": min(gains), "median": statistics.median(gains), "most": max(gains)},
    }
    figures["optimum"]["below_goal"] = sum(share < GOAL_EACH for share in shares)
    figures["gain"]["idle_nodes"] = sum(case["idle"] for case in rivals)
    figures["gain"]["most_help_of_idle"] = max(case["most_help"] for case in rivals)
    if not given.without_time:
        figures["seconds"] = {str(number): measure_time(number) for number in GOALS_S}
    report["figures"] = report.get("figures", {}) | figures
    write_report(given.out, report)
    print(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()

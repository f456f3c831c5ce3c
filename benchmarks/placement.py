"""Compares placements with the exact optimum, with the baselines, and with time limits.

    python -m benchmarks.placement --out benchmarks/results/placement.json

- ``optimum``: on random problems of at most ``--nodes`` nodes, the share of the exact optimum that the search reaches;
  `tests.support.clusters.find_optimum` tries every set, order, range and division of requests. The goals are 0.95 for
  each problem and 0.99 for the median. A problem with 6 nodes takes up to ten seconds.
- ``baselines``: on random clusters of 8 to 40 nodes, the predicted tokens per second compared with the policies
  ``greedy`` and ``water-filling``. The goal is never below 1.
- ``time``: seconds of CPU time for 64 and 1,000 nodes, on the slowest of three clusters. The goals are 0.2 and 1.

Finished problems are kept in ``--out``, so that a run that was ended continues where it was.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any

from benchmarks.record import describe_run, read_report, write_report
from parallax_core.cluster.placement.baselines import GreedyPlacement, WaterFillingPlacement
from parallax_core.cluster.placement.estimate import PlacementEstimator
from parallax_core.cluster.placement.policy import SearchPlacement
from parallax_core.contracts.placement import ClusterProfile, PlacementPolicy, PlacementProblem, ServingGoal
from tests.support.clusters import find_optimum, make_model, make_node, make_problem

GOAL_EACH, GOAL_MEDIAN = 0.95, 0.99
GOALS_S = {64: 0.2, 1000: 1.0}
SAVED_EVERY = 10


def compare_optimum(seed: int, most_nodes: int) -> dict[str, Any]:
    """Return the share of the optimum that the search reaches on one random problem."""
    problem = make_problem(seed, most_nodes)
    best, estimator = find_optimum(problem), PlacementEstimator(problem)
    found = estimator.estimate(SearchPlacement().place(problem, estimator))
    if not best:
        share = 1.0 if not found.num_requests else 0.0
    elif problem.goal.objective == "throughput":
        share = found.tokens_per_s / best
    else:
        share = best / found.response_s if found.num_requests else 0.0
    return {"share": share, "nodes": len(problem.cluster.nodes), "objective": problem.goal.objective, "fits": best > 0}


def make_large(seed: int, num_nodes: int) -> PlacementProblem:
    """Return a cluster of unequal nodes, some of which hold the whole model, with 4 requests for each node."""
    random = Random(seed)  # noqa: S311 -- the same problems each time
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
    return PlacementProblem(
        cluster=ClusterProfile(nodes=nodes), model=model, goal=ServingGoal(concurrency=4 * num_nodes)
    )


def compare_baselines(seed: int) -> dict[str, Any]:
    """Return the tokens per second of the search and of the baselines on one random cluster."""
    problem = make_large(seed, 8 + seed * 7 % 33)
    policies: dict[str, PlacementPolicy] = {
        "search": SearchPlacement(),
        "greedy": GreedyPlacement(),
        "water-filling": WaterFillingPlacement(),
    }
    estimator = PlacementEstimator(problem)
    speeds = {
        name: estimator.estimate(policy.place(problem, estimator)).tokens_per_s for name, policy in policies.items()
    }
    best = max(speeds["greedy"], speeds["water-filling"])
    return {"tokens_per_s": speeds, "gain": speeds["search"] / best if best else None}


def measure_time(num_nodes: int) -> float:
    """Return the seconds of CPU time to place a model on the slowest of three clusters, the less of two runs each."""
    return max(min(_place(make_large(seed, num_nodes)) for _ in range(2)) for seed in range(3))


def _place(problem: PlacementProblem) -> float:
    estimator, began = PlacementEstimator(problem), time.process_time()
    SearchPlacement().place(problem, estimator)
    return time.process_time() - began


def run_cases(report: dict[str, Any], name: str, number: int, run: Callable[[int], Any], out: Path | None) -> list[Any]:
    """Run the cases that the report does not have, saving it from time to time; return all of them."""
    cases = report.setdefault(name, {})
    for seed in range(number):
        if str(seed) not in cases:
            cases[str(seed)] = run(seed)
            if len(cases) % SAVED_EVERY == 0:
                write_report(out, report)
                print(f"{name}: {len(cases)} of {number}", flush=True)
    return [cases[str(seed)] for seed in range(number)]


def main(arguments: Sequence[str]) -> None:
    """Run the comparisons, print the figures, and write the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problems", type=int, default=500, help="problems to compare with the optimum")
    parser.add_argument("--nodes", type=int, default=6, help="the most nodes of these problems")
    parser.add_argument("--clusters", type=int, default=200, help="clusters to compare with the baselines")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args(arguments)
    command = ["benchmarks.placement", "--problems", str(given.problems), "--nodes", str(given.nodes)]
    report = {**read_report(given.out), **describe_run(command)}
    cases = run_cases(
        report, f"optimum {given.nodes}", given.problems, lambda s: compare_optimum(s, given.nodes), given.out
    )
    shares = [case["share"] for case in cases]
    below = sum(share < GOAL_EACH for share in shares)
    print(f"share of the optimum: least {min(shares):.4f}, median {statistics.median(shares):.4f}, below goal {below}")
    gains = [
        case["gain"]
        for case in run_cases(report, "baselines", given.clusters, compare_baselines, given.out)
        if case["gain"] is not None
    ]
    print(
        f"gain over the better baseline: least {min(gains):.3f}, median {statistics.median(gains):.3f}, of {len(gains)}"
    )
    taken = {number: measure_time(number) for number in GOALS_S}
    print(", ".join(f"{number} nodes: {seconds:.3f} s" for number, seconds in taken.items()))
    report["figures"] = {
        "optimum": {"least": min(shares), "median": statistics.median(shares), "below_goal": below},
        "gain": {"least": min(gains), "median": statistics.median(gains)},
        "seconds": {str(number): seconds for number, seconds in taken.items()},
    }
    write_report(given.out, report)
    reached = not below and statistics.median(shares) >= GOAL_MEDIAN and min(gains) >= 1
    print("goals reached" if reached and all(taken[number] <= GOALS_S[number] for number in taken) else "goals missed")


if __name__ == "__main__":
    main(sys.argv[1:])

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
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import inf
from pathlib import Path
from random import Random
from typing import Any

from benchmarks.record import describe_run, read_report, write_report
from parallax_core.cluster.placement.baselines import GreedyPlacement, WaterFillingPlacement
from parallax_core.cluster.placement.estimate import PlacementEstimator
from parallax_core.cluster.placement.idle_use import IdleUses
from parallax_core.cluster.placement.policy import SearchPlacement
from parallax_core.cluster.placement.seeds import can_hold
from parallax_core.cluster.placement.shares import rate_pipelines
from parallax_core.cluster.placement.stage_table import Effort
from parallax_core.contracts.placement import ClusterProfile, Placement, PlacementPolicy, PlacementProblem, ServingGoal
from tests.support.clusters import make_model, make_node, make_problem
from tests.support.optimum import find_optimum

GOAL_EACH, GOAL_MEDIAN = 0.95, 0.99
GOAL_HELP = 0.01
GOALS_S = {64: 0.2, 1000: 1.0}
SAVED_EVERY = 10
BASELINES: dict[str, PlacementPolicy] = {"greedy": GreedyPlacement(), "water-filling": WaterFillingPlacement()}
Case = Callable[[int, dict[str, Any]], dict[str, Any]]
"""Runs a case, from its seed and what an earlier run found."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Options:
    """How much of the comparisons to run."""

    out: Path | None
    seconds: float
    run: int


def compare_optimum(seed: int, most_nodes: int, known: dict[str, Any]) -> dict[str, Any]:
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
    return {
        "share": share,
        "optimum": best,
        "nodes": len(problem.cluster.nodes),
        "objective": problem.goal.objective,
        "fits": best > 0,
    }


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
    return PlacementProblem(
        cluster=ClusterProfile(nodes=nodes), model=model, goal=ServingGoal(concurrency=4 * num_nodes)
    )


def compare_baselines(seed: int, known: dict[str, Any]) -> dict[str, Any]:
    """Return the tokens per second of the search and of the baselines on a random cluster, and idle nodes that help.

    The baselines are not computed again if they are in ``known``.
    """
    problem = make_large(seed, 8 + seed * 7 % 33)
    estimator = PlacementEstimator(problem)
    placement = SearchPlacement().place(problem, estimator)
    speeds = known.get("tokens_per_s", {}) | {"search": estimator.estimate(placement).tokens_per_s}
    for name, policy in BASELINES.items():
        if name not in speeds:
            speeds[name] = estimator.estimate(policy.place(problem, estimator)).tokens_per_s
    best = max(speeds[name] for name in BASELINES)
    return {
        "tokens_per_s": speeds,
        "gain": speeds["search"] / best if best else None,
        "idle": len(problem.cluster.nodes) - sum(map(len, placement.pipelines)),
        "most_help": measure_help(estimator, placement),
    }


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
    return max(min(_place(make_large(seed, num_nodes)) for _ in range(2)) for seed in range(3))


def _place(problem: PlacementProblem) -> float:
    estimator, began = PlacementEstimator(problem), time.process_time()
    SearchPlacement().place(problem, estimator)
    return time.process_time() - began


def run_cases(report: dict[str, Any], name: str, number: int, run: Case, options: Options) -> list[Any]:
    """Run the cases that the report does not have, saving it from time to time; return all that there are then."""
    cases, began = report.setdefault(name, {}), time.monotonic()
    for seed in range(number):
        case = cases.get(str(seed), {})
        if case.get("run") == options.run:
            continue
        if time.monotonic() - began > options.seconds:
            break
        cases[str(seed)] = {**run(seed, case), "run": options.run}
        if seed % SAVED_EVERY == SAVED_EVERY - 1:
            write_report(options.out, report)
    done = [case for case in cases.values() if case["run"] == options.run]
    print(f"{name}: {len(done)} of {number}", flush=True)
    return done


def summarize_shares(shares: Sequence[float]) -> dict[str, Any]:
    """Return the least and the median share of the optimum, and the number below the goal."""
    below = sum(share < GOAL_EACH for share in shares)
    return {"problems": len(shares), "least": min(shares), "median": statistics.median(shares), "below_goal": below}


def summarize_gains(cases: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the gains over the better baseline, and whether an idle node would help."""
    gains = [case["gain"] for case in cases if case["gain"] is not None]
    return {
        "clusters": len(cases),
        "least": min(gains),
        "median": statistics.median(gains),
        "most": max(gains),
        "idle_nodes": sum(case["idle"] for case in cases),
        "most_help_of_idle": max(case["most_help"] for case in cases),
    }


def main(arguments: Sequence[str]) -> None:
    """Run the comparisons, print the figures, and write the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problems", type=int, default=500, help="problems to compare with the optimum")
    parser.add_argument("--nodes", type=int, default=6, help="the most nodes of these problems")
    parser.add_argument("--clusters", type=int, default=200, help="clusters to compare with the baselines")
    parser.add_argument(
        "--seconds", type=float, default=inf, help="the most seconds for each comparison; it goes on in the next run"
    )
    parser.add_argument(
        "--run", type=int, default=1, help="with another number, all searches run again; optima are kept"
    )
    parser.add_argument("--without-time", action="store_true", help="leave out the times, which need a quiet machine")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args(arguments)
    options = Options(out=given.out, seconds=given.seconds, run=given.run)
    command = ["benchmarks.placement", "--problems", str(given.problems), "--nodes", str(given.nodes)]
    report = {**read_report(given.out), **describe_run(command)}
    figures = report.setdefault("figures", {})
    compare = partial(compare_optimum, most_nodes=given.nodes)
    if cases := run_cases(
        report, f"optimum {given.nodes}", given.problems, lambda seed, known: compare(seed, known=known), options
    ):
        figures["optimum"] = summarize_shares([case["share"] for case in cases])
    if cases := run_cases(report, "baselines", given.clusters, compare_baselines, options):
        figures["gain"] = summarize_gains(cases)
    if not given.without_time:
        figures["seconds"] = {str(number): measure_time(number) for number in GOALS_S}
    write_report(given.out, report)
    print(json.dumps(figures, indent=2))
    print("goals reached" if has_reached(figures) else "goals missed")


def has_reached(figures: dict[str, Any]) -> bool:
    """Return whether all goals are reached."""
    optimum, gain, seconds = (figures.get(name, {}) for name in ("optimum", "gain", "seconds"))
    return (
        optimum.get("below_goal") == 0
        and optimum["median"] >= GOAL_MEDIAN
        and gain.get("least", 0) >= 1
        and gain["most_help_of_idle"] <= GOAL_HELP
        and all(seconds.get(str(number), inf) <= goal_s for number, goal_s in GOALS_S.items())
    )


if __name__ == "__main__":
    main(sys.argv[1:])

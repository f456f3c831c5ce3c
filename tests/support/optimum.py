"""The exact optimum of small placement problems, by exhaustive search."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations, pairwise, permutations
from math import inf
from typing import NamedTuple

from parallax_cluster.placement.cost_model import CostModel
from parallax_cluster.placement.paced_turns import MOST_STEP_TOKENS
from parallax_core.contracts.placement import PlacementProblem

ROUNDING = 1 - 1e-9
"""Bounds are lowered by this factor, so that rounding errors exclude nothing."""


class StageBound(NamedTuple):
    """The least seconds of a request because of one stage of its pipeline."""

    own_s: float
    """That it spends on the stage itself; those of all stages add up."""
    busy_s: float
    """That the stage computes for all requests of the pipeline."""


def find_optimum(problem: PlacementProblem) -> float:
    """Return the best objective of any placement: tokens per second, or the least mean seconds with waiting.

    Every set of nodes is tried in every order, with all ranges and any number of requests; then sets are joined by
    dynamic programming. It is 0 if the model does not fit.
    """
    costs = CostModel(problem)
    num_nodes, concurrency = len(costs.nodes), costs.goal.concurrency
    alone = {_mask(nodes): _find_best(costs, nodes) for nodes in _list_sets(num_nodes)}
    total = {0: [0.0] + [-inf] * concurrency}
    for mask in range(1, 1 << num_nodes):
        lowest = mask & -mask
        best = list(total[mask ^ lowest])
        for part in (each for each in alone if each & mask == each and each & lowest):
            _join(best, alone[part], total[mask ^ part])
        total[mask] = best
    values = total[(1 << num_nodes) - 1]
    if costs.goal.objective == "throughput":
        return max(values)
    waits = [-value * concurrency / num**2 for num, value in enumerate(values) if num and value > -inf]
    return min(waits, default=0.0)


def _list_sets(num_nodes: int) -> Iterator[tuple[int, ...]]:
    for number in range(1, num_nodes + 1):
        yield from combinations(range(num_nodes), number)


def _mask(nodes: tuple[int, ...]) -> int:
    return sum(1 << node for node in nodes)


def _find_best(costs: CostModel, nodes: tuple[int, ...]) -> list[float]:
    """Return the best value of a pipeline of all these nodes, by the number of its requests.

    A pipeline is computed only if a bound says that it may be better than those before.
    """
    least = [inf] * (costs.goal.concurrency + 1)
    bounds = [_Bounds(costs, number) for number in range(1, len(least))]
    for order in filter(costs.is_linked, permutations(nodes)):
        for inner in combinations(range(1, costs.num_layers), len(nodes) - 1):
            cuts = (0, *inner, costs.num_layers)
            stages = tuple(zip(order, pairwise(cuts), strict=True))
            fitting = min(costs.count_fitting(node, *cut) for node, cut in stages)
            for number in range(1, int(min(fitting, costs.goal.concurrency)) + 1):
                if bounds[number - 1].find(stages) < least[number]:
                    least[number] = min(least[number], costs.measure_pipeline(order, cuts, number).request_s)
    is_throughput = costs.goal.objective == "throughput"
    values = (num * (costs.goal.output_tokens / each if is_throughput else -each) for num, each in enumerate(least))
    return [0.0, *list(values)[1:]]


class _Bounds:
    """The least seconds of a request in pipelines with some stages and requests."""

    def __init__(self, costs: CostModel, num_requests: int) -> None:
        self._costs = costs
        self._num_requests = num_requests
        self._known: dict[tuple[int, tuple[int, int]], StageBound] = {}

    def find(self, stages: tuple[tuple[int, tuple[int, int]], ...]) -> float:
        """Return the bound, from the nodes and the cuts of the stages."""
        own_s, busy_s = 0.0, 0.0
        for stage in stages:
            if stage not in self._known:
                self._known[stage] = self._bound(*stage)
            bound = self._known[stage]
            own_s += bound.own_s
            busy_s = max(busy_s, bound.busy_s)
        return max(own_s, busy_s) * ROUNDING

    def _bound(self, node: int, cut: tuple[int, int]) -> StageBound:
        """Return a bound: decodes alone in their steps, then all the computing of a stage that reads in no time."""
        steps, goal = self._costs.describe_steps(node, *cut), self._costs.goal
        prompt, decodes = goal.prompt_tokens, goal.output_tokens - 1
        first_s = min(steps.measure(1.0, 0.0), steps.measure(0.0, min(prompt, MOST_STEP_TOKENS)))
        busy_s = self._num_requests * (prompt * steps.prompt_s + decodes * steps.decode_s)
        return StageBound(decodes * steps.measure(1.0, 0.0) + first_s, busy_s)


def _join(best: list[float], one: list[float], other: list[float]) -> None:
    """Raise ``best`` to the sums of two pipelines' values, by the number of requests of both."""
    for first in range(1, len(best)):
        if one[first] > -inf:
            for second in range(len(best) - first):
                best[first + second] = max(best[first + second], one[first] + other[second])

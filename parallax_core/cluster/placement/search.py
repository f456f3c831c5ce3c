"""Improves the pipelines of a cluster by moving and swapping nodes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from math import inf
from random import Random

from parallax_core.cluster.placement.cost_model import CostModel
from parallax_core.cluster.placement.estimate import Pipeline, Rating, score_pipelines
from parallax_core.cluster.placement.ranges import Ranges, balance_ranges, find_slowest, shorten_ranges
from parallax_core.cluster.placement.seeds import Layout

SLACKS = (1.0, 1.1, 1.3, 2.0, inf)
"""The slowest stages to allow, as multiples of the slowest in balanced ranges, where shorter ranges are sought."""
MOST_SMALL = 8
"""Up to this many nodes, several ranges are tried for every layout, and not only for the best."""
MOST_CUTS = 10_000
"""The most stages times layers squared for which that is done: each takes dynamic programming about a microsecond."""
GAIN = 1e-6
"""The relative gain below which a change is none."""


class LayoutSearch:
    """Improves layouts by moving and swapping nodes; the ranges of each pipeline are computed for its nodes."""

    def __init__(self, costs: CostModel, effort: int, seed: int) -> None:
        """Search with about ``effort`` computations of the ranges of a stage."""
        self.costs = costs
        self._left = effort
        self.is_small = len(costs.nodes) <= MOST_SMALL
        self._random = Random(seed)  # noqa: S311 -- the same answer for the same seed is the point
        self._pipelines: dict[tuple[int, ...], Pipeline | None] = {}
        self._power = [1 / costs.price_stage(1, 1)(node, 0, costs.num_layers) for node in range(len(costs.nodes))]

    @property
    def has_effort(self) -> bool:
        """Whether there is effort left."""
        return self._left > 0

    def solve(self, order: tuple[int, ...]) -> Pipeline | None:
        """Return the pipeline of some nodes, with balanced ranges; None if their memory does not suffice."""
        if order not in self._pipelines:
            self._pipelines[order] = self._find_best(order)
        return self._pipelines[order]

    def _find_best(self, order: tuple[int, ...]) -> Pipeline | None:
        """Return the best pipeline of some nodes for the requests they would get if all nodes served."""
        goal, power = self.costs.goal, sum(self._power[node] for node in order)
        share = max(1, round(goal.concurrency * power / sum(self._power)))
        if goal.objective == "latency" and self.is_small:
            share = goal.concurrency  # the fewest and fastest nodes may serve all
        is_short = len(order) * self.costs.num_layers**2 <= MOST_CUTS
        slacks = (1.0, inf) if self.is_small and is_short else ()
        found = list(islice(self._list_variants(order, share, slacks), None if self.is_small else 1))
        return max(found, key=lambda each: (self._rate(each, share), -found.index(each))) if found else None

    def _rate(self, pipeline: Pipeline, share: int) -> tuple[float, float]:
        num = min(share, pipeline.max_requests)
        return (num if self.costs.goal.objective == "latency" else 0.0), pipeline.value(num)

    def solve_all(self, layout: Layout) -> list[Pipeline]:
        """Return the pipelines of a layout that have memory for the model."""
        return [pipeline for order in layout if (pipeline := self.solve(order))]

    def score(self, layout: Layout) -> Rating:
        """Return how good a layout is."""
        return self._score(self.solve_all(layout))

    def _score(self, pipelines: Sequence[Pipeline]) -> Rating:
        self._left -= 1 + 2 * len(pipelines)
        return score_pipelines(self.costs, pipelines)

    def improve(self, layout: Layout) -> Layout:
        """Return a layout that no single move or swap improves, or the best one when the effort is spent."""
        best, score = layout, self.score(layout)
        while better := self._find_better(best, score):
            best, score = better
        return best

    def _find_better(self, layout: Layout, score: Rating) -> tuple[Layout, Rating] | None:
        """Return the first better neighbour that is found, with its score."""
        for changed in self._list_neighbours(layout):
            if not self.has_effort:
                break
            if is_better(other := self.score(changed), score):
                return changed, other
        return None

    def draw_layout(self) -> Layout:
        """Return a random layout of all nodes."""
        number = self._random.randint(1, len(self.costs.nodes))
        hands: list[list[int]] = [[] for _ in range(number)]
        for node in self._random.sample(range(len(self.costs.nodes)), len(self.costs.nodes)):
            self._random.choice(hands).append(node)
        return tuple(tuple(hand) for hand in hands if hand)

    def disturb(self, layout: Layout, num_moves: int) -> Layout:
        """Return a layout with some random nodes moved to random places."""
        for _ in range(num_moves):
            node = self._random.randrange(len(self.costs.nodes))
            layout = _move(layout, node, self._random.randrange(sum(map(len, layout)) + len(layout) + 2))
        return layout

    def refine(self, layout: Layout) -> None:
        """Choose among other ranges for each pipeline: for more or fewer requests, and shorter in all than balanced."""
        for order in layout:
            if not self.has_effort:
                break
            others = [pipeline for each in layout if each != order and (pipeline := self.solve(each))]
            best = self.solve(order)
            best_score = self._score([*others, best] if best else others)
            for other in self._list_variants(order, self.costs.goal.concurrency, SLACKS):
                score = self._score([*others, other])
                if best is None or is_better(score, best_score):
                    best, best_score = other, score
            self._pipelines[order] = best

    def _list_variants(self, order: tuple[int, ...], most: int, slacks: Sequence[float]) -> Iterator[Pipeline]:
        """Yield pipelines for at most ``most`` requests and fewer: balanced, and as short as each slack allows."""
        num_requests, known = most, set[Ranges]()
        while num_requests:
            for ranges in self._list_ranges(order, num_requests, slacks):
                if ranges not in known:
                    known.add(ranges)
                    yield Pipeline(self.costs, *ranges)
            num_requests //= 2

    def _list_ranges(self, order: tuple[int, ...], num_requests: int, slacks: Sequence[float]) -> Iterator[Ranges]:
        self._left -= len(order)
        if balanced := balance_ranges(self.costs, order, num_requests):
            yield balanced
            slowest_s = find_slowest(self.costs.price_stage(len(order), num_requests), balanced)
            for slack in slacks:
                self._left -= len(order) * self.costs.num_layers**2 // 100
                if shorter := shorten_ranges(self.costs, order, num_requests, slack * slowest_s):
                    yield shorter

    def _list_neighbours(self, layout: Layout) -> Iterator[Layout]:
        """Yield layouts that differ by one node moved to another place, or by two nodes swapped, in random order."""
        num_nodes, places = len(self.costs.nodes), sum(map(len, layout)) + len(layout) + 2
        moves = range(num_nodes * (places + num_nodes))
        for move in self._random.sample(moves, min(len(moves), max(self._left, 0))):
            node, target = divmod(move, places + num_nodes)
            changed = _move(layout, node, target) if target < places else _swap(layout, node, target - places)
            if changed != layout:
                yield changed


def _move(layout: Layout, node: int, place: int) -> Layout:
    """Take a node out and put it in at a place: before the node there, at an end, alone, or nowhere."""
    pipelines = []
    for order in layout:
        without = [each for each in order if each != node]
        if 0 <= place <= len(order):
            without.insert(min(place, len(without)), node)
        place -= len(order) + 1
        if without:
            pipelines.append(tuple(without))
    return (*pipelines, (node,)) if place == 0 else tuple(pipelines)


def _swap(layout: Layout, one: int, other: int) -> Layout:
    """Exchange two nodes; one of them may be idle."""
    exchange = {one: other, other: one}
    return tuple(tuple(exchange.get(node, node) for node in order) for order in layout)


def is_better(score: Rating, than: Rating) -> bool:
    """Return whether a score is better by more than rounding errors."""
    for new, old in zip(score, than, strict=True):
        if abs(new - old) > GAIN * max(abs(new), abs(old)):
            return new > old
    return False

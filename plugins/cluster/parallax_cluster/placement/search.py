"""Improves the pipelines of a cluster by moving and swapping nodes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from heapq import nlargest
from random import Random

from parallax_cluster.placement.cost_model import CostModel
from parallax_cluster.placement.pipeline import Pipeline
from parallax_cluster.placement.seeds import Layout
from parallax_cluster.placement.shares import (
    Rating,
    RequestShare,
    can_share_exactly,
    is_better,
    make_offers,
    rate_offers,
    rate_pipelines,
    share_offers,
)
from parallax_cluster.placement.stage_table import Effort
from parallax_cluster.placement.variants import NEXT, VariantFinder

MOST_SMALL = 8
"""Up to this many nodes, several ranges are kept for every order of nodes, by the number of their requests."""
MEASURING = 2
"""Predicting the times of a pipeline for several numbers of requests takes this many times as long as balancing it."""
MOST_RATED = 4
"""Rating this number of pipelines whose times are known takes as long as balancing a stage."""
PORTIONS = 8
"""The portions in which requests are shared out while layouts of a small cluster are compared."""


class LayoutSearch:
    """Improves layouts by moving and swapping nodes; the ranges of each pipeline are computed for its nodes."""

    def __init__(self, costs: CostModel, effort: int, seed: int) -> None:
        """Search with about ``effort`` computations of the ranges of a stage."""
        self.costs = costs
        self.is_small = len(costs.nodes) <= MOST_SMALL
        self._effort = Effort(effort)
        self._variants = VariantFinder(costs, self._effort)
        self._random = Random(seed)  # noqa: S311 -- the same answer for the same seed is the point
        self._pipelines: dict[tuple[int, ...], Pipeline | None] = {}
        self._offers: dict[tuple[int, ...], list[RequestShare]] = {}
        self._scores: dict[frozenset[tuple[int, ...]], tuple[Rating, Layout]] = {}
        self._power = [1 / costs.price_stage(1, 1)(node, 0, costs.num_layers) for node in range(len(costs.nodes))]
        most = costs.goal.concurrency
        self._numbers = {most * portion // PORTIONS for portion in range(1, PORTIONS + 1)}

    @property
    def has_effort(self) -> bool:
        """Whether there is effort left."""
        return self._effort.left > 0

    @property
    def effort(self) -> Effort:
        """What the search may still compute."""
        return self._effort

    def solve(self, order: tuple[int, ...]) -> Pipeline | None:
        """Return the pipeline of some nodes, with balanced ranges; None if their memory does not suffice.

        They are balanced for the requests that they would get if all nodes served.
        """
        if order not in self._pipelines:
            power = sum(self._power[node] for node in order)
            share = max(1, round(self.costs.goal.concurrency * power / sum(self._power)))
            self._effort.spend(MEASURING * len(order))
            self._pipelines[order] = next(self._variants.list_all(order, share, ()), None)
        return self._pipelines[order]

    def solve_all(self, layout: Layout) -> list[Pipeline]:
        """Return the pipelines of a layout that have memory for the model."""
        return [pipeline for order in layout if (pipeline := self.solve(order))]

    def score(self, layout: Layout) -> Rating:
        """Return how good a layout is."""
        key = frozenset(layout)
        if key not in self._scores:
            if self.is_small:
                score = rate_offers(self._share(layout), self.costs.goal)
            else:
                score = self.rate(self.solve_all(layout))
            self._scores[key] = score, layout
        return self._scores[key][0]

    def rate(self, pipelines: Sequence[Pipeline]) -> Rating:
        """Return how good some pipelines are."""
        self._effort.spend(1 + len(pipelines) // MOST_RATED)
        return rate_pipelines(pipelines, self.costs.goal)

    def list_best(self, number: int) -> list[Layout]:
        """Return the best different layouts that were scored."""
        return [layout for _, layout in nlargest(number, self._scores.values(), key=lambda scored: scored[0])]

    def _share(self, layout: Layout) -> list[RequestShare]:
        """Return a pipeline of each order of nodes with some requests, chosen together."""
        self._effort.spend(1 + 2 * len(layout))
        return share_offers([self._offer(order) for order in layout], self.costs.goal)

    def _offer(self, order: tuple[int, ...]) -> list[RequestShare]:
        if order not in self._offers:
            found = self._variants.find_few(order, self.costs.goal.concurrency)
            self._offers[order] = make_offers(found, self._numbers)
        return self._offers[order]

    def polish(self, layout: Layout) -> list[Pipeline]:
        """Return the pipelines of a layout of a small cluster, with ranges and requests that suit each other."""
        most, offers = self.costs.goal.concurrency, self._share(layout)
        found = [offer.pipeline for offer in offers if offer.pipeline]
        if can_share_exactly(len(layout), most):
            variants = [list(self._variants.list_all(order, most, share=NEXT)) for order in layout]
            offers = share_offers([make_offers(each, range(most + 1)) for each in variants], self.costs.goal)
            found = max(found, [offer.pipeline for offer in offers if offer.pipeline], key=self.rate)
        return found

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
        """Choose among other ranges for each pipeline: for more or fewer requests, and shorter in all than balanced.

        It ends when half of the effort is left, so that nodes are moved too.
        """
        half = self._effort.left // 2
        for order in layout:
            if self._effort.left <= half:
                break
            others = [pipeline for each in layout if each != order and (pipeline := self.solve(each))]
            best = self.solve(order)
            best_score = self.rate([*others, best] if best else others)
            for other in self._variants.list_all(order, self.costs.goal.concurrency):
                score = self.rate([*others, other])
                if best is None or is_better(score, best_score):
                    best, best_score = other, score
                if self._effort.left <= half:
                    break
            if best is not self.solve(order):
                self._pipelines[order] = best
                self._scores.clear()

    def _list_neighbours(self, layout: Layout) -> Iterator[Layout]:
        """Yield layouts that differ by one node moved to another place, or by two nodes swapped, in random order."""
        num_nodes, places = len(self.costs.nodes), sum(map(len, layout)) + len(layout) + 2
        moves = range(num_nodes * (places + num_nodes))
        for move in self._random.sample(moves, min(len(moves), max(self._effort.left, 0))):
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

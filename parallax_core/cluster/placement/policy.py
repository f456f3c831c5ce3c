"""The default placement policy, which searches for the placement with the best predicted speed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

from parallax_core.cluster.placement.baselines import group_greedily, measure_room
from parallax_core.cluster.placement.cost_model import CostModel
from parallax_core.cluster.placement.movement import is_worth_moving, measure_movement
from parallax_core.cluster.placement.search import MOST_SMALL, LayoutSearch, is_better
from parallax_core.cluster.placement.seeds import Layout, deal_layouts
from parallax_core.contracts.placement import Estimator, Placement, PlacementProblem

NUM_STARTS = 3
"""The number of first layouts of different shapes that are improved, best first, in a small cluster."""
NUM_RESTARTS = 4
"""The number of random layouts that are improved after these, in a small cluster."""
WEIGHTS_SHARE = 0.65
"""The share of a node's memory for weights in the first layout that is made as the greedy baseline makes it."""
NUM_KICKS = 40
"""The number of times that the best layout is changed at random and improved again, in a small cluster."""
SMALL_EFFORT = 8
"""The effort is larger by this factor in a small cluster, where each computation takes less time."""
MOST_ROUNDS = 3
"""The most turns of choosing ranges and then moving nodes."""


@dataclass(frozen=True, slots=True)
class SearchPlacement:
    """Deal the nodes to pipelines, improve the best of these placements step by step, and keep the best one found.

    A node that does not raise the predicted speed stays idle. If there is a current placement, it stays unless another
    one is worth the move.
    """

    effort: int = 5000
    """The number of stages whose layers may be computed, before the search ends with the best placement so far."""
    seed: int = 0
    """Chooses the order in which changes are tried; the same seed gives the same placement."""

    def __post_init__(self) -> None:
        if self.effort < 0:
            message = f"effort is {self.effort}; it must be 0 or more"
            raise ValueError(message)

    def place(self, problem: PlacementProblem, estimator: Estimator) -> Placement:
        """Return the best placement found; one without pipelines if the model does not fit."""
        if not problem.cluster.nodes:
            return Placement()
        factor = SMALL_EFFORT if len(problem.cluster.nodes) <= MOST_SMALL else 1
        search = LayoutSearch(CostModel(problem), self.effort * factor, self.seed)
        found = [_place(search, layout) for layout in search_layouts(search, _read_layout(problem))]
        return _choose(problem, estimator, found)


def search_layouts(search: LayoutSearch, current: Layout = ()) -> list[Layout]:
    """Return improved layouts, best first: those made from nothing, and the one made from the current layout.

    There is none if the memory of all nodes together does not suffice.
    """
    starts = []
    greedy = tuple(map(tuple, group_greedily(measure_room(search.costs.problem, WEIGHTS_SHARE))))
    for layout in chain([current] if current else [], deal_layouts(search.costs), [greedy]):
        starts.append((search.score(layout), layout))
        if not search.has_effort:
            break
    starts.sort(key=lambda start: start[0], reverse=True)
    shapes = {tuple(map(len, layout)): layout for _, layout in reversed(starts)}
    differing = [layout for _, layout in starts if layout in shapes.values()]
    chosen = differing[: NUM_STARTS if search.is_small else 1]
    if current and current not in chosen:
        chosen.append(current)
    if chosen and search.is_small:
        chosen += [search.draw_layout() for _ in range(NUM_RESTARTS)]
    improved = [_improve(search, layout) for layout in chosen]
    improved.sort(key=search.score, reverse=True)
    if improved and search.is_small:
        improved.insert(0, _improve_again(search, improved[0]))
    return improved


def _improve_again(search: LayoutSearch, best: Layout) -> Layout:
    """Return the best layout found by changing the best one at random and improving that, again and again.

    This is iterated local search (Lourenço, Martin and Stützle, Handbook of Metaheuristics, 2003). It finds layouts
    that are several moves away, none of which gains alone.
    """
    score = search.score(best)
    for number in range(NUM_KICKS):
        if not search.has_effort:
            break
        layout = _improve(search, search.disturb(best, 2 + number % 3))
        if is_better(other := search.score(layout), score):
            best, score = layout, other
    return best


def _improve(search: LayoutSearch, layout: Layout) -> Layout:
    for _ in range(MOST_ROUNDS):
        search.refine(layout)
        improved = search.improve(layout)
        if improved == layout:
            break
        layout = improved
    return layout


def _place(search: LayoutSearch, layout: Layout) -> Placement:
    pipelines = search.solve_all(layout)
    return Placement(tuple(sorted((each.place() for each in pipelines), key=lambda stages: stages[0].node)))


def _read_layout(problem: PlacementProblem) -> Layout:
    """Return the current pipelines without the nodes that are gone."""
    indices = {node.name: index for index, node in enumerate(problem.cluster.nodes)}
    pipelines = problem.current.pipelines if problem.current else ()
    layout = (tuple(indices[stage.node] for stage in stages if stage.node in indices) for stages in pipelines)
    return tuple(order for order in layout if order)


def _choose(problem: PlacementProblem, estimator: Estimator, found: Sequence[Placement]) -> Placement:
    """Return the best of ``found``, or the current placement if none is worth the move."""
    best = found[0] if found else Placement()
    if problem.current is None:
        return best
    try:
        old = estimator.estimate(problem.current)
    except ValueError:  # a node is gone, or has less memory than before
        return best
    for placement in found:
        movement = measure_movement(problem, problem.current, placement)
        if is_worth_moving(problem, old, estimator.estimate(placement), movement):
            return placement
    return problem.current

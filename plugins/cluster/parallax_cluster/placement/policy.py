"""The default placement policy, which searches for the placement with the best predicted speed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

from parallax_cluster.placement.baselines import fill_groups, group_greedily, group_optimally, measure_room
from parallax_cluster.placement.cost_model import CostModel
from parallax_cluster.placement.idle_use import IdleUses
from parallax_cluster.placement.lease_plan import plan_leases
from parallax_cluster.placement.movement import is_worth_moving, measure_movement
from parallax_cluster.placement.pipeline import Pipeline
from parallax_cluster.placement.search import MOST_SMALL, LayoutSearch
from parallax_cluster.placement.seeds import Layout, deal_layouts, group_layouts
from parallax_cluster.placement.shares import GAIN, is_better, rate_pipelines
from parallax_cluster.placement.stage_table import Effort
from parallax_core.api import Estimator, Placement, PlacementProblem

NUM_STARTS = 3
"""The number of first layouts of different shapes that are improved, best first, in a small cluster."""
NUM_RESTARTS = 4
"""The number of random layouts that are improved after these, in a small cluster."""
WEIGHTS_SHARE = 0.65
"""The share of a node's memory for weights in the first layout that is made as the greedy baseline makes it."""
NUM_KICKS = 40
"""The number of times that the best layout is changed at random and improved again, in a small cluster."""
NUM_POLISHED = 8
"""The number of the best layouts for which ranges and requests are chosen together, in a small cluster."""
MOST_MEDIUM = 40
"""Up to this many nodes, two first layouts are improved, and one is made as the water-filling baseline makes it."""
FEW_STATES = 20
"""The states that its dynamic programming keeps for each node."""
EFFORTS = {MOST_SMALL: 4, MOST_MEDIUM: 6}
"""The effort is larger by a factor in clusters of at most this many nodes, where each computation takes less time."""
ADOPTING, ADOPTING_LARGE = 60_000, 20_000
"""The effort for trying idle nodes in the best placement, in clusters of at most `MOST_MEDIUM` nodes and in others."""
WORTH_DIVIDING = 0.045
"""The relative gain below which the best node of a small cluster serves alone: predictions are not more exact."""
WORTH_SHARING = 0.05
"""The relative gain below which no nodes are shared: waits between pipelines are predicted less exactly."""
MOST_ROUNDS = 3
"""The most turns of choosing ranges and then moving nodes."""


@dataclass(frozen=True, slots=True)
class SearchPlacement:
    """Deal the nodes to pipelines, improve the best of these placements step by step, and keep the best one found.

    A node that does not raise the predicted speed stays idle. If there is a current placement, it stays unless another
    one is worth the move.
    """

    effort: int = 4000
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
        num_nodes = len(problem.cluster.nodes)
        factor = next((factor for most, factor in EFFORTS.items() if num_nodes <= most), 1)
        costs = CostModel(problem)
        search = LayoutSearch(costs, self.effort * factor, self.seed)
        found = [_place(each) for each in search_pipelines(search, _read_layout(problem))]
        return _choose(problem, estimator, [*_find_shared(costs, estimator, found), *found])


def _find_shared(costs: CostModel, estimator: Estimator, found: Sequence[Placement]) -> list[Placement]:
    """Return the best placement in which pipelines share nodes, if it is better than the best of ``found``."""
    shared = plan_leases(costs, estimator)
    if not shared:
        return []
    best, estimate = max(shared, key=lambda pair: pair[1].tokens_per_s)
    floor = estimator.estimate(found[0]).tokens_per_s * (1 + WORTH_SHARING) if found else 0.0
    return [best] if estimate.tokens_per_s > floor else []


def search_pipelines(search: LayoutSearch, current: Layout = ()) -> list[list[Pipeline]]:
    """Return the pipelines of good layouts, best first: those found from nothing, and from the current layout.

    There is none if the memory of all nodes together does not suffice.
    """
    costs, num_nodes = search.costs, len(search.costs.nodes)
    room = measure_room(costs.problem, WEIGHTS_SHARE)
    groups = [group_greedily(room), *([group_optimally(room, FEW_STATES)] if num_nodes <= MOST_MEDIUM else [])]
    starts = [(search.score(layout), layout) for layout in _list_starts(search, current, groups)]
    starts.sort(key=lambda start: start[0], reverse=True)
    shapes = {tuple(map(len, layout)): layout for _, layout in reversed(starts)}
    differing = [layout for _, layout in starts if layout in shapes.values()]
    chosen = differing[: NUM_STARTS if search.is_small else 1 + (num_nodes <= MOST_MEDIUM)]
    if current and current not in chosen:
        chosen.append(current)
    if search.is_small:
        found = [search.polish(layout) for layout in _search_small(search, chosen)]
    else:
        found = [search.solve_all(_improve(search, layout)) for layout in chosen]
    baselines = [fill_groups(costs, room, group) for group in groups]
    found += baselines
    found.sort(key=search.rate, reverse=True)
    is_medium = num_nodes <= MOST_MEDIUM
    effort = Effort(ADOPTING if is_medium else ADOPTING_LARGE)
    best = IdleUses(costs, effort, is_quick=not is_medium).adopt(found[0])
    single = _find_single(costs) if search.is_small and not current else []  # nodes that serve are not given up for it
    least = WORTH_DIVIDING if costs.goal.concurrency == 1 else GAIN
    gains = [(best, WORTH_DIVIDING), *((each, least) for each in baselines)]
    if single and not any(is_better(search.rate(each), search.rate(single), gain) for each, gain in gains):
        return [single, best, *found]
    return [best, *found]


def _find_single(costs: CostModel) -> list[Pipeline]:
    """Return the pipeline of the best node alone; none if no node holds the model."""
    nodes = [node for node in range(len(costs.nodes)) if costs.count_fitting(node, 0, costs.num_layers) >= 1]
    alone = [[Pipeline(costs, (node,), (0, costs.num_layers))] for node in nodes]
    return max(alone, key=lambda pipelines: rate_pipelines(pipelines, costs.goal), default=[])


def _list_starts(search: LayoutSearch, current: Layout, groups: Sequence[Sequence[Sequence[int]]]) -> Iterator[Layout]:
    """Yield first layouts, until the effort is spent: the current one, those that nodes are dealt to, and groups."""
    first = chain(
        [current] if current else [], deal_layouts(search.costs), (tuple(map(tuple, each)) for each in groups)
    )
    if len(search.costs.nodes) > MOST_MEDIUM:  # each costs much of the effort, which is for improving the best
        left = search.effort.left
        yield from chain(first, group_layouts(search.costs))
        search.effort.left = left
        return
    for layout in first:
        yield layout
        if not search.has_effort:
            break


def _search_small(search: LayoutSearch, starts: Sequence[Layout]) -> list[Layout]:
    """Return the best layouts that are seen while some first and some random ones are improved."""
    layouts = [*starts, *(search.draw_layout() for _ in range(NUM_RESTARTS) if starts)]
    improved = [search.improve(layout) for layout in layouts]
    if improved:
        _improve_again(search, max(improved, key=search.score))
    return [*starts[:1], *search.list_best(NUM_POLISHED)]


def _improve_again(search: LayoutSearch, best: Layout) -> None:
    """Change the best layout at random and improve that, again and again.

    This is iterated local search (Lourenço, Martin and Stützle, Handbook of Metaheuristics, 2003). It finds layouts
    that are several moves away, none of which gains alone.
    """
    score = search.score(best)
    for number in range(NUM_KICKS):
        if not search.has_effort:
            break
        layout = search.improve(search.disturb(best, 2 + number % 3))
        if is_better(other := search.score(layout), score):
            best, score = layout, other


def _improve(search: LayoutSearch, layout: Layout) -> Layout:
    for _ in range(MOST_ROUNDS):
        search.refine(layout)
        improved = search.improve(layout)
        if improved == layout:
            break
        layout = improved
    return layout


def _place(pipelines: Sequence[Pipeline]) -> Placement:
    return Placement(tuple(sorted((each.place() for each in pipelines), key=lambda stages: stages[0].node)))


def _read_layout(problem: PlacementProblem) -> Layout:
    """Return the current pipelines without the nodes that are gone, and each node in the first one that has it."""
    indices = {node.name: index for index, node in enumerate(problem.cluster.nodes)}
    pipelines = problem.current.pipelines if problem.current else ()
    seen = set[str]()
    layout = []
    for stages in pipelines:
        names = [stage.node for stage in stages if stage.node in indices and stage.node not in seen]
        seen.update(names)
        layout.append(tuple(indices[name] for name in names))
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

"""Orders the changes of a cluster's pipelines so that most of them serve meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from parallax_cluster.layer_plan import Stages

NOTICE_S = 1.0
"""Seconds between the notice of a move and its beginning, where all pipelines still have their nodes."""
PATIENCE_S = 120.0
"""Seconds after which the next pipelines move, though the last ones are not ready."""


@dataclass(frozen=True, slots=True)
class MoveStep:
    """Pipelines that take nodes from each other in a circle, and so can only move together; mostly it is one."""

    ranks: frozenset[int]
    needs: frozenset[int]
    """The ranks that have to give nodes before."""


@dataclass(slots=True)
class Rollout:
    """The steps from the pipelines that are there to those of a plan; times are given, not read.

    A step begins when the pipelines of the last one are ready. Pipelines that have lost a node do not wait, nor do
    those that have to give nodes to them, nor new ones of nodes that nobody has.
    """

    current: Mapping[int, Stages]
    """The stages of each pipeline that is there, by rank."""
    planned: Mapping[int, Stages]
    broken: Collection[int]
    """The ranks of pipelines that have lost a node, or are to lose one."""
    began: float
    steps: list[MoveStep] = field(init=False)
    """Those that have not begun."""
    _moving: frozenset[int] = frozenset()
    _moved_at: float = 0.0

    def __post_init__(self) -> None:
        self.steps = order_moves(self.current, self.planned)

    @property
    def pending(self) -> frozenset[int]:
        """The ranks that are still to move, or have moved and are not known to be ready."""
        return self._moving | self._waiting

    def advance(self, is_ready: Callable[[int], bool], now: float) -> frozenset[int]:
        """Return the ranks that are to move now; ``is_ready`` tells whether a pipeline serves as it is planned."""
        if self._moving and (now >= self._moved_at + PATIENCE_S or all(map(is_ready, self._moving))):
            self._moving = frozenset()
        due = self._find_urgent()
        if not due and not self._moving and self.steps and (self.broken or now >= self.began + NOTICE_S):
            due = self.steps[0].ranks
        self.steps = [step for step in self.steps if not step.ranks <= due]
        if due:
            self._moving, self._moved_at = (self._moving | due) & frozenset(self.planned), now
        return due

    def _find_urgent(self) -> frozenset[int]:
        """Return the ranks whose moving takes nothing from any pipeline that serves, or mends one that does not."""
        broken = [step for step in self.steps if not step.ranks.isdisjoint(self.broken)]
        new = [step for step in self.steps if not step.needs and step.ranks.isdisjoint(self.current)]
        wanted = frozenset[int]().union(*(step.ranks | step.needs for step in [*broken, *new]))
        return wanted & self._waiting

    @property
    def _waiting(self) -> frozenset[int]:
        return frozenset[int]().union(*(step.ranks for step in self.steps))


def order_moves(current: Mapping[int, Stages], planned: Mapping[int, Stages]) -> list[MoveStep]:
    """Return the steps of pipelines' changes: a pipeline that gets a node follows the one that gives it.

    Pipelines that share a node, and change there, move together: the node holds the same layers for all of them.

    Args:
        current: the stages of each pipeline, by rank.
        planned: what they are to be; a rank that is missing is to end.
    """
    changed = [rank for rank in sorted({*current, *planned}) if current.get(rank) != planned.get(rank)]
    holders: dict[str, set[int]] = {}
    for rank in changed:
        for stage in current.get(rank, ()):
            holders.setdefault(stage.node, set()).add(rank)
    needs = {
        rank: {other for stage in planned.get(rank, ()) for other in holders.get(stage.node, ())} - {rank}
        for rank in changed
    }
    reached = {rank: _reach(rank, needs) for rank in changed}
    steps = set()
    for rank in changed:
        circle = frozenset({rank, *(other for other in reached[rank] if rank in reached[other])})
        steps.add(MoveStep(circle, frozenset[int]().union(*(reached[each] for each in circle)) - circle))
    return sorted(steps, key=lambda step: (len(step.ranks | step.needs), min(step.ranks)))


def _reach(rank: int, needs: Mapping[int, set[int]]) -> set[int]:
    """Return the ranks that have to give nodes before a rank can have its own."""
    found: set[int] = set()
    left = list(needs[rank])
    while left:
        other = left.pop()
        if other not in found:
            found.add(other)
            left += needs[other]
    return found

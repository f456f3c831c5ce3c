"""Plans pipelines of nodes whose layers are fixed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import inf

from parallax_cluster.layer_plan import LayerPlan, Stages, describe_unreachable, find_intact, give_ranks
from parallax_cluster.model_variants import ModelVariants
from parallax_cluster.placement.covers import describe_gap, find_covers
from parallax_cluster.placement.estimate import PlacementEstimator
from parallax_cluster.placement.movement import find_loads, measure_movement
from parallax_cluster.rebalancing.rest import USUAL, MoveRules
from parallax_core.api import (
    ClusterProfile,
    Estimate,
    LayerRange,
    ModelDemand,
    NodeProfile,
    Placement,
    PlacementProblem,
    ServingGoal,
)

AMPLE = 2**50
"""Bytes of memory that suffice for any layers: of a fixed node it is its user who knows that they fit."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CoverPlanner:
    """Plans the pipelines of one model over nodes that have fixed layers; a `Planner`."""

    model: ModelDemand
    goal: ServingGoal = field(default_factory=ServingGoal)
    rules: MoveRules = USUAL
    variants: ModelVariants | None = None
    """None: nodes choose what they load themselves."""

    def plan(
        self, cluster: ClusterProfile, current: Mapping[int, Stages], *, has_begun: bool = False, keeps: str = ""
    ) -> LayerPlan:
        """Return the pipelines that the nodes of ``cluster`` form: the intact ones, and new ones of free nodes.

        Args:
            cluster: the nodes that may be used; those without `NodeProfile.fixed_layers` are not.
            current: the pipelines so far, by rank; some of their nodes may be gone.
            has_begun: has no effect, since no number of nodes is waited for.
            keeps: has no effect, since no layers move.
        """
        del has_begun, keeps
        ranges = {node.name: node.fixed_layers for node in cluster.nodes if node.fixed_layers is not None}
        intact = find_intact(current.values(), ranges, cluster.unreachable)
        kept = [stages for stages in intact if _is_valid(stages, ranges)]
        used = {stage.node for stages in kept for stage in stages}
        free = {name: layers for name, layers in ranges.items() if name not in used}
        covers = [*kept, *find_covers(free, len(self.model.layers), cluster.head, _Trips(cluster))]
        idle = self._explain_idle(ranges, covers)
        if not covers:
            gap = describe_gap(list(ranges.values()), len(self.model.layers))
            return LayerPlan(cluster=cluster, idle=idle, waits_for=gap or describe_unreachable(cluster))
        problem = PlacementProblem(cluster=cluster, model=self.model, goal=self.goal)
        placement, held = Placement(tuple(covers)), Placement(tuple(current.values()))
        loads = find_loads(problem, held, placement)
        return LayerPlan(
            cluster=cluster,
            pipelines=dict(zip(give_ranks(current, covers), covers, strict=True)),
            estimate=_estimate(problem, placement),
            idle=idle,
            movement=measure_movement(problem, held, placement),
            loads={node: sum(sizes.values()) for node, sizes in loads.items()},
        )

    def _explain_idle(self, ranges: Mapping[str, LayerRange], covers: list[Stages]) -> dict[str, str]:
        used = {stage.node: stage.layers for stages in covers for stage in stages}
        return {
            name: f"it is a spare: other nodes have its layers {layers.start}-{layers.stop}"
            if layers in used.values()
            else f"no pipeline of all layers leads through its layers {layers.start}-{layers.stop}"
            for name, layers in ranges.items()
            if name not in used
        }


class _Trips:
    """Finds the round trips between nodes; those that were not measured are taken for usual ones.

    They are infinite where a node does not reach the other.
    """

    def __init__(self, cluster: ClusterProfile) -> None:
        self._trips = {frozenset(link.ends): link.round_trip_s for link in cluster.links}
        self._default = cluster.default_link.round_trip_s
        self._unreachable = cluster.unreachable

    def __call__(self, one: str, other: str) -> float:
        if (one, other) in self._unreachable:
            return inf
        return self._trips.get(frozenset((one, other)), self._default)


def _is_valid(stages: Stages, ranges: Mapping[str, LayerRange]) -> bool:
    return all(ranges[stage.node] == stage.layers for stage in stages)


def _estimate(problem: PlacementProblem, placement: Placement) -> Estimate:
    try:
        return PlacementEstimator(problem).estimate(placement)
    except ValueError:  # by what a node says, its memory does not suffice; then it refuses its layers itself
        nodes = tuple(_enlarge(node) for node in problem.cluster.nodes)
        ample = replace(problem, cluster=replace(problem.cluster, nodes=nodes))
        return PlacementEstimator(ample).estimate(placement)


def _enlarge(node: NodeProfile) -> NodeProfile:
    return replace(node, device=replace(node.device, memory=AMPLE))

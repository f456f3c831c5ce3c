"""Decides which pipelines a cluster has, anew whenever its nodes change."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count, pairwise, permutations
from typing import Protocol

from parallax_cluster.labels import ANYWHERE, LabelRules
from parallax_cluster.model_variants import FORM, UNMIXED_HINT, ModelVariants
from parallax_cluster.placement.contexts import describe_short_contexts, select_by_context
from parallax_cluster.placement.estimate import PlacementEstimator
from parallax_cluster.placement.idle import MOST_TOLD, explain_idle, name_some
from parallax_cluster.placement.leased import shares_nodes
from parallax_cluster.placement.movement import Movement, find_loads, is_worth_moving, measure_movement
from parallax_cluster.placement.same_form import take_over
from parallax_cluster.placement.shortage import describe_shortage
from parallax_cluster.rebalancing.rest import USUAL as USUAL_RULES
from parallax_cluster.rebalancing.rest import MoveRules
from parallax_core.api import (
    ClusterProfile,
    Estimate,
    Estimator,
    ModelDemand,
    PipelineEstimate,
    PlacedStage,
    Placement,
    PlacementPolicy,
    PlacementProblem,
    ServingGoal,
    lease_node,
)

MOST_SETTLED = 5
"""The most stages of a pipeline whose nodes are tried in every order."""
NEARLY = 0.98
"""The share of the speed for which nodes need not load other layers."""
NO_ORDER = "the nodes together could hold the model, but a stage has to reach the next one"
Stages = tuple[PlacedStage, ...]
"""The stages of one pipeline, in order."""
NO_MOVEMENT = Movement(load_bytes=0, load_s=0.0, num_moved=0)
USUAL = ServingGoal()
NOTHING = Estimate(pipelines=(), num_requests=0, tokens_per_s=0.0, ttft_s=0.0, token_s=0.0, request_s=0.0)


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerPlan:
    """The pipelines of a cluster, each by its rank, and what is predicted of them."""

    cluster: ClusterProfile
    pipelines: Mapping[int, Stages] = field(default_factory=dict)
    estimate: Estimate = NOTHING
    """Of all pipelines, in the order of `pipelines`."""
    idle: Mapping[str, str] = field(default_factory=dict)
    """Why nodes have no layers, by name."""
    waits_for: str = ""
    """What is missing if there is no pipeline; empty: nothing."""
    movement: Movement = NO_MOVEMENT
    """What it takes to get there from the pipelines before."""
    loads: Mapping[str, int] = field(default_factory=dict)
    """The bytes of weights that each node must load for that, by name."""

    def predict(self, rank: int) -> PipelineEstimate | None:
        """Return the predicted figures of a rank's pipeline, or None without one."""
        return dict(zip(self.pipelines, self.estimate.pipelines, strict=True)).get(rank)


class Planner(Protocol):
    """Decides which pipelines of one model the nodes of a cluster form."""

    @property
    def model(self) -> ModelDemand:
        """What the model takes."""

    @property
    def rules(self) -> MoveRules:
        """When layers move."""

    @property
    def variants(self) -> ModelVariants | None:
        """Which files nodes load; None: all load those of the model that was named."""

    def plan(
        self, cluster: ClusterProfile, current: Mapping[int, Stages], *, has_begun: bool = False, keeps: str = ""
    ) -> LayerPlan:
        """Return the pipelines that the nodes of ``cluster`` are to form.

        Args:
            cluster: the nodes that may be used.
            current: the pipelines so far, by rank; some of their nodes may be gone.
            has_begun: whether there was a pipeline before.
            keeps: why pipelines that have all their nodes stay as they are; empty: others may take their place.
        """


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerPlanner:
    """Plans the pipelines of one model over nodes that run any layers; a `Planner`."""

    policy: PlacementPolicy
    model: ModelDemand
    goal: ServingGoal = USUAL
    min_nodes: int = 0
    """The nodes to wait for before the first pipeline."""
    rules: MoveRules = USUAL_RULES
    labels: LabelRules = ANYWHERE
    variants: ModelVariants | None = None
    """Which files nodes load, so that others with the same take the places of lost ones; None: all load the same."""

    def plan(
        self, cluster: ClusterProfile, current: Mapping[int, Stages], *, has_begun: bool = False, keeps: str = ""
    ) -> LayerPlan:
        """Return the pipelines that the nodes of ``cluster`` are to form.

        Pipelines that have all their nodes stay as they are unless others are worth the move (`is_worth_moving`). A
        rank whose pipeline is broken is given to a new one, whose nodes it had if possible.

        Args:
            cluster: the nodes that may be used.
            current: the pipelines so far, by rank; some of their nodes may be gone.
            has_begun: whether there was a pipeline before, so that no number of nodes is waited for.
            keeps: why pipelines that have all their nodes stay as they are, and only the other nodes form new ones;
                empty: they change if that is worth the move.
        """
        labelled, barred = self.labels.select(cluster)
        allowed, too_short = select_by_context(labelled, self.goal)
        found, waits_for = self._plan(allowed, current, has_begun=has_begun, keeps=keeps), ""
        if barred and not labelled.nodes:
            waits_for = self.labels.describe_missing()
        elif too_short and not found.pipelines:
            waits_for = describe_short_contexts(labelled, self.goal, "" if not allowed.nodes else found.waits_for)
        idle = {**found.idle, **barred, **too_short}
        return replace(found, cluster=cluster, idle=idle, waits_for=waits_for or found.waits_for)

    def _plan(
        self, cluster: ClusterProfile, current: Mapping[int, Stages], *, has_begun: bool, keeps: str
    ) -> LayerPlan:
        missing = self.min_nodes - len(cluster.nodes)
        if not has_begun and missing > 0:
            joined = f"{len(cluster.nodes)} of {self.min_nodes} nodes have joined"
            idle = {node.name: joined for node in cluster.nodes}
            return LayerPlan(cluster=cluster, idle=idle, waits_for=f"{joined}, and it waits for all of them")
        names = {node.name for node in cluster.nodes}
        intact = find_intact(current.values(), names, cluster.unreachable)
        kept = Placement(
            tuple(stages for stages in intact if self.labels.is_in_one(cluster, (stage.node for stage in stages)))
        )
        problem = PlacementProblem(
            cluster=cluster, model=self.model, goal=self.goal, current=kept if kept.pipelines else None
        )
        estimator = PlacementEstimator(problem)
        repaired = take_over(problem, estimator, current.values(), self.variants.find) if self.variants else None
        extended = self._extend(problem, estimator) if keeps and not repaired else None
        placement = repaired or extended or self._place(problem, estimator)
        if not placement.pipelines:
            waits_for = self._explain(problem)
            return LayerPlan(cluster=cluster, idle=self._explain_idle(problem, placement), waits_for=waits_for)
        held = Placement(tuple(current.values()))
        placement = repaired or settle_nodes(problem, estimator, held, placement)
        ranks, loads = give_ranks(current, placement.pipelines), find_loads(problem, held, placement)
        return LayerPlan(
            cluster=cluster,
            pipelines=dict(zip(ranks, placement.pipelines, strict=True)),
            estimate=estimator.estimate(placement),
            idle=dict.fromkeys(list_idle(cluster, placement), keeps)
            if extended
            else self._explain_idle(problem, placement),
            movement=measure_movement(problem, held, placement),
            loads={node: sum(sizes.values()) for node, sizes in loads.items()},
        )

    def _extend(self, problem: PlacementProblem, estimator: Estimator) -> Placement | None:
        """Return the current pipelines, and those of other nodes that better them; None: none can stay as it is."""
        if problem.current is None:
            return None
        idle = list_idle(problem.cluster, problem.current)
        nodes = tuple(node for node in problem.cluster.nodes if node.name in idle)
        others = replace(problem, cluster=replace(problem.cluster, nodes=nodes), current=None)
        found = self._place(others, PlacementEstimator(others)).pipelines if nodes else ()
        both = Placement((*problem.current.pipelines, *found))
        try:
            old, new = estimator.estimate(problem.current), estimator.estimate(both)
        except ValueError:  # a node has less memory than before
            return None
        movement = measure_movement(problem, problem.current, both)
        return both if found and is_worth_moving(problem, old, new, movement) else problem.current

    def _place(self, problem: PlacementProblem, estimator: Estimator) -> Placement:
        """Return the pipelines that the policy forms of the nodes of each failure domain."""
        domains = self.labels.divide(problem)
        if list(domains.values()) == [problem]:
            return self.policy.place(problem, estimator)
        placements = (self.policy.place(each, PlacementEstimator(each)) for each in domains.values())
        return Placement(tuple(pipeline for placement in placements for pipeline in placement.pipelines))

    def _explain(self, problem: PlacementProblem) -> str:
        """Return why there is no pipeline: missing links, or else missing memory, in each failure domain."""
        domains = self.labels.divide(problem)
        reasons = [
            describe_unreachable(each.cluster) if lacks_links(each, self.policy) else describe_shortage(each)
            for each in domains.values()
        ]
        if not self.labels.keys or not reasons:
            return reasons[0] if reasons else describe_shortage(problem)
        told = [f"{name}: {reason}" for name, reason in zip(domains, reasons, strict=True)]
        hint = f" ({UNMIXED_HINT})" if self.labels.same == FORM else ""
        return f"no {' and '.join(self.labels.keys)} holds the model by itself{hint}: {'; '.join(told[:MOST_TOLD])}"

    def _explain_idle(self, problem: PlacementProblem, placement: Placement) -> dict[str, str]:
        """Return the reason for each node without layers, by its name: what its domain has counts."""
        idle: dict[str, str] = {}
        for each in self.labels.divide(problem).values():
            names = {node.name for node in each.cluster.nodes}
            own = tuple(stages for stages in placement.pipelines if stages[0].node in names)
            idle |= explain_idle(each, Placement(own))
        return idle


def limit_to_variants(planner: LayerPlanner, variants: ModelVariants) -> LayerPlanner:
    """Return a planner that moves no layers to other weights for speed, and mixes weights only where that is asked."""
    rules = replace(planner.rules, holds=True)
    labels = planner.labels if variants.are_mixed else replace(planner.labels, same=FORM)
    return replace(planner, rules=rules, labels=labels, variants=variants)


def list_idle(cluster: ClusterProfile, placement: Placement) -> list[str]:
    """Return the nodes of a cluster without layers, by name."""
    used = {stage.node for stages in placement.pipelines for stage in stages}
    return [node.name for node in cluster.nodes if node.name not in used]


def settle_nodes(problem: PlacementProblem, estimator: Estimator, held: Placement, placement: Placement) -> Placement:
    """Return a placement as good, whose nodes have to load least: nodes of a pipeline exchange their layers.

    Args:
        problem: that ``placement`` solves.
        estimator: of the problem.
        held: what nodes have loaded; some may be gone.
        placement: the nodes and the layers of each stage.
    """
    best, least = placement, measure_movement(problem, held, placement).load_bytes
    floor = estimator.estimate(placement)
    for rank, stages in enumerate(placement.pipelines):
        if len(stages) > MOST_SETTLED or stages in held.pipelines or shares_nodes(stages):
            continue
        for nodes in permutations([stage.node for stage in stages]):
            pairs = zip(nodes, stages, strict=True)
            changed = tuple(PlacedStage(node, stage.layers) for node, stage in pairs)
            other = Placement((*best.pipelines[:rank], changed, *best.pipelines[rank + 1 :]))
            load = measure_movement(problem, held, other).load_bytes
            if load < least and _is_as_good(estimator, other, floor):
                best, least = other, load
    return best


def _is_as_good(estimator: Estimator, placement: Placement, floor: Estimate) -> bool:
    try:
        found = estimator.estimate(placement)
    except ValueError:  # a node has too little memory for the layers of another
        return False
    is_fast = found.tokens_per_s >= NEARLY * floor.tokens_per_s and found.request_s <= floor.request_s / NEARLY
    return is_fast and found.num_requests >= floor.num_requests


def list_hops(stages: Stages) -> Iterator[tuple[str, str]]:
    """Yield the nodes of each stage but the last and of the next one, to which it connects."""
    return pairwise(stage.node for stage in stages)


def find_intact(
    pipelines: Iterable[Stages], nodes: Collection[str], unreachable: Collection[tuple[str, str]] = ()
) -> list[Stages]:
    """Return the pipelines all of whose nodes are among ``nodes``, and reach each other."""
    return [
        stages
        for stages in pipelines
        if all(stage.node in nodes for stage in stages) and not any(hop in unreachable for hop in list_hops(stages))
    ]


def give_ranks(current: Mapping[int, Stages], pipelines: Sequence[Stages]) -> list[int]:
    """Return a rank for each of ``pipelines``: of the current one with most of its nodes, else a free or new one.

    A rank has requests, which are computed again on the nodes it gets. One of the pipelines always has rank 0.
    """
    pairs = [
        (stages != old, -_count_shared(stages, old), index, rank)
        for index, stages in enumerate(pipelines)
        for rank, old in current.items()
    ]
    ranks: dict[int, int] = {}
    for _, _, index, rank in sorted(pairs):
        if index not in ranks and rank not in ranks.values():
            ranks[index] = rank
    others = (rank for rank in count() if rank not in current)
    found = [ranks[index] if index in ranks else next(others) for index in range(len(pipelines))]
    if found and 0 not in found:
        found[found.index(max(found))] = 0
    return found


def lacks_links(problem: PlacementProblem, policy: PlacementPolicy) -> bool:
    """Return whether nodes on which a model cannot be placed could hold it if they reached each other."""
    linked = replace(problem, cluster=replace(problem.cluster, unreachable=frozenset()))
    return bool(problem.cluster.unreachable and policy.place(linked, PlacementEstimator(linked)).pipelines)


def describe_unreachable(cluster: ClusterProfile) -> str:
    """Return, in words, the nodes that do not reach each other, so that no order forms a pipeline."""
    return f"{NO_ORDER}: {'; '.join(list_unreachable(cluster.unreachable)) or 'no links are known'}"


def list_unreachable(pairs: Collection[tuple[str, str]]) -> list[str]:
    """Return a sentence for each node that does not reach others, at most `MOST_TOLD` of them."""
    found: dict[str, list[str]] = {}
    for one, other in sorted(pairs):
        found.setdefault(one, []).append(other)
    told = [f"{one} does not reach {name_some(others)}" for one, others in found.items()]
    return told if len(told) <= MOST_TOLD else [*told[:MOST_TOLD], f"and {len(told) - MOST_TOLD} nodes more"]


def count_leases(pipelines: Mapping[int, Stages]) -> dict[str, int]:
    """Return the highest number of a lease of each node that has any, by name."""
    found: dict[str, int] = {}
    for stage in (stage for stages in pipelines.values() for stage in stages):
        if stage.lease is not None:
            found[stage.node] = max(stage.lease.number, found.get(stage.node, 0))
    return found


def name_member(stage: PlacedStage) -> str:
    """Return the name of what joins for a stage: its node, or a lease of that."""
    return lease_node(stage.node, stage.lease.number) if stage.lease is not None else stage.node


def _count_shared(one: Stages, other: Stages) -> int:
    return len({stage.node for stage in one} & {stage.node for stage in other})

"""Combines what is known of a cluster: its replicas, the nodes that have joined, and what is planned."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from parallax_core.base.ids import holder_of
from parallax_core.contracts.engine import Engine
from parallax_core.contracts.placement import Estimate, PipelineEstimate, PlacedStage
from parallax_core.contracts.status import Described, NodeStatus, PlannedMove, PlannedReplica, PlanStatus, ReplicaStatus
from parallax_core.server.cluster_models import (
    ClusterModelReply,
    ClusterReply,
    LeaseReply,
    MemberReply,
    MoveReply,
    NodeState,
    PlannedReplicaReply,
    PlannedStageReply,
    PlanReply,
    PredictionReply,
    show_node,
    show_replica,
)
from parallax_core.server.served_models import ServedModels


def view_cluster(models: ServedModels) -> ClusterReply:
    """Return the whole state of a server's cluster."""
    health, services = models.health(), models.services
    main = services[0].model_id if services else ""
    replicas = {service.model_id: describe_replicas(service.engine) for service in services}
    plans = {model: models.find_plan(model) for model in replicas}
    plan = plans.get(main) or models.find_plan("")
    return ClusterReply(
        object="cluster",
        model=main,
        models=[ClusterModelReply(id=each.id, state=each.status, error=each.error or None) for each in models.all],
        status=health.state,
        reason=health.reason,
        replicas=[show_replica(each, model) for model, found in replicas.items() for each in found],
        waiting=[show_node(each) for each in models.list_waiting()],
        nodes=list(_list_members(models.list_nodes(), replicas, plans)),
        plan=_show_plan(plan, replicas.get(main, ())) if plan is not None else None,
    )


def describe_replicas(engine: Engine) -> tuple[ReplicaStatus, ...]:
    """Return the status of each replica of an engine."""
    return engine.describe() if isinstance(engine, Described) else (ReplicaStatus(health=engine.health()),)


@dataclass(frozen=True, slots=True)
class NodePlace:
    """What a node has, or is to have."""

    model: str
    rank: int
    layers: list[int] | None
    is_ready: bool = False


def _list_members(
    nodes: Sequence[NodeStatus],
    replicas: Mapping[str, Sequence[ReplicaStatus]],
    plans: Mapping[str, PlanStatus | None],
) -> Iterator[MemberReply]:
    """Yield each node with what it does; a planned stage counts also before its node has loaded it."""
    places: dict[str, NodePlace] = {}
    for model, found in replicas.items():
        places.update(find_places(model, found, plans[model]))
    found_plans = [plan for plan in plans.values() if plan is not None]
    idle = {name: reason for plan in found_plans for name, reason in plan.idle.items()}
    slowdowns = {name: factor for plan in found_plans for name, factor in plan.slowdowns.items()}
    unreachable = {pair for plan in found_plans for pair in plan.unreachable}
    for node in nodes:
        place = places.get(node.name)
        state: NodeState = "idle" if place is None else "serving" if place.is_ready else "loading"
        shown = show_node(node).model_dump()
        if found_plans:  # they count with what was tried since the node has reported
            shown["unreached"] = sorted(other for one, other in unreachable if one == node.name)
        yield MemberReply(
            **shown,
            state=state,
            model=place.model if place else None,
            replica=place.rank if place else None,
            layers=place.layers if place else None,
            idle_reason=idle.get(node.name) if state == "idle" else None,
            slowdown=slowdowns.get(node.name, 1.0) if found_plans else None,
        )


def find_places(model: str, replicas: Sequence[ReplicaStatus], plan: PlanStatus | None) -> dict[str, NodePlace]:
    """Return the place of each node that has, or is to have, layers of a model."""
    places: dict[str, NodePlace] = {}
    for planned in plan.replicas if plan else ():
        for placed in planned.stages:
            places[placed.node] = NodePlace(model, planned.rank, [placed.layers.start, placed.layers.stop])
    for replica in replicas:
        is_ready = replica.health.state == "ready"
        for stage in (each for each in replica.stages if each.pid):
            layers = [stage.layers.start, stage.layers.stop] if stage.layers else None
            if (node := holder_of(stage.node)) not in places or is_ready:
                places[node] = NodePlace(model, replica.rank, layers, is_ready)
    return places


def _show_plan(plan: PlanStatus, replicas: Sequence[ReplicaStatus]) -> PlanReply:
    found = {replica.rank: replica for replica in replicas}
    return PlanReply(
        replicas=[_show_planned(each, found.get(each.rank)) for each in plan.replicas],
        predicted=_show_prediction(plan.estimate) if plan.estimate is not None else None,
        waits_for=plan.waits_for or None,
        join_command=plan.join_command or None,
        term=plan.term or None,
        standbys=list(plan.standbys),
        move=_show_move(plan.move) if plan.move is not None else None,
    )


def _show_move(move: PlannedMove) -> MoveReply:
    return MoveReply(
        reason=move.reason,
        bytes=sum(move.loads.values()),
        nodes=dict(move.loads),
        seconds=move.load_s,
        replicas=list(move.ranks),
    )


def _show_planned(planned: PlannedReplica, replica: ReplicaStatus | None) -> PlannedReplicaReply:
    return PlannedReplicaReply(
        rank=planned.rank,
        stages=[_show_placed(each) for each in planned.stages],
        predicted=_show_prediction(planned.estimate),
        limit=planned.estimate.limit,
        limit_at=planned.estimate.limit_at or None,
        measured_token_seconds=measure_token(replica) if replica is not None else None,
    )


def _show_placed(stage: PlacedStage) -> PlannedStageReply:
    lease = stage.lease
    holds = [stage.holds.start, stage.holds.stop]
    return PlannedStageReply(
        node=stage.node,
        layers=[stage.layers.start, stage.layers.stop],
        lease=LeaseReply(number=lease.number, holds=holds, memory_share=lease.memory_share) if lease else None,
    )


def _show_prediction(estimate: Estimate | PipelineEstimate) -> PredictionReply:
    return PredictionReply(
        tokens_per_second=estimate.tokens_per_s,
        first_token_seconds=estimate.ttft_s,
        token_seconds=estimate.token_s,
        requests=estimate.num_requests,
    )


def measure_token(replica: ReplicaStatus) -> float | None:
    """Return the seconds of a step through all stages and links of a replica; None: not all have been measured."""
    times = [stage.step_time.median_s for stage in replica.stages if stage.step_time is not None]
    if replica.hop_s is None or not times or len(times) < len(replica.stages):
        return None
    return sum(times) + replica.hop_s * (len(times) + 1)

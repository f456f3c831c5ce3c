"""Combines what is known of a cluster: its replicas, the nodes that have joined, and what is planned."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from parallax_core.contracts.placement import Estimate, PipelineEstimate
from parallax_core.contracts.status import Described, NodeStatus, PlannedMove, PlannedReplica, PlanStatus, ReplicaStatus
from parallax_core.server.cluster_models import (
    ClusterReply,
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
from parallax_core.server.service import Service


def view_cluster(service: Service) -> ClusterReply:
    """Return the whole state of a server's cluster."""
    health, replicas, plan = service.engine.health(), describe_replicas(service), service.find_plan()
    return ClusterReply(
        object="cluster",
        model=service.model_id,
        status=health.state,
        reason=health.reason,
        replicas=[show_replica(each) for each in replicas],
        waiting=[show_node(each) for each in service.list_waiting()],
        nodes=list(_list_members(service.list_nodes(), replicas, plan)),
        plan=_show_plan(plan, replicas) if plan is not None else None,
    )


def describe_replicas(service: Service) -> tuple[ReplicaStatus, ...]:
    """Return the status of each replica."""
    engine = service.engine
    return engine.describe() if isinstance(engine, Described) else (ReplicaStatus(health=engine.health()),)


def _list_members(
    nodes: Sequence[NodeStatus], replicas: Sequence[ReplicaStatus], plan: PlanStatus | None
) -> Iterator[MemberReply]:
    """Yield each node with what it does; a planned stage counts also before its node has loaded it."""
    places: dict[str, tuple[int, list[int] | None, bool]] = {}
    for planned in plan.replicas if plan else ():
        for placed in planned.stages:
            places[placed.node] = (planned.rank, [placed.layers.start, placed.layers.stop], False)
    for replica in replicas:
        for stage in (each for each in replica.stages if each.pid):
            layers = [stage.layers.start, stage.layers.stop] if stage.layers else None
            if stage.node not in places or replica.health.state == "ready":
                places[stage.node] = (replica.rank, layers, replica.health.state == "ready")
    for node in nodes:
        rank, layers, is_ready = places.get(node.name, (None, None, False))
        state: NodeState = "idle" if rank is None else "serving" if is_ready else "loading"
        yield MemberReply(
            **show_node(node).model_dump(),
            state=state,
            replica=rank,
            layers=layers,
            idle_reason=plan.idle.get(node.name) if plan and state == "idle" else None,
            slowdown=plan.slowdowns.get(node.name, 1.0) if plan else None,
        )


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
    stages = [(each.node, [each.layers.start, each.layers.stop]) for each in planned.stages]
    return PlannedReplicaReply(
        rank=planned.rank,
        stages=[PlannedStageReply(node=node, layers=layers) for node, layers in stages],
        predicted=_show_prediction(planned.estimate),
        limit=planned.estimate.limit,
        limit_at=planned.estimate.limit_at or None,
        measured_token_seconds=measure_token(replica) if replica is not None else None,
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

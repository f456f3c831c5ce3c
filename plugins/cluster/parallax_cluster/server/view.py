"""Combines the status of a cluster: its replicas, its joined nodes and its plan."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from parallax_cluster.server.replies import (
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
    describe_node,
    show_node,
    show_replica,
)
from parallax_cluster.versions import Versions, find_expected
from parallax_core.api import Engine, Estimate, Health, PipelineEstimate, PlacedStage, holder_of, name_machine
from parallax_core.api.deployment import Described, NodeStatus, PlannedMove, PlannedReplica, PlanStatus, ReplicaStatus
from parallax_core.api.dialect import ModelState, ServedModels


def describe_replicas(engine: Engine) -> tuple[ReplicaStatus, ...]:
    """Return the status of each replica of an engine."""
    return engine.describe() if isinstance(engine, Described) else (ReplicaStatus(health=engine.health()),)


@dataclass(frozen=True, slots=True)
class NodePlace:
    """What a node has, or is to have."""

    model: str
    rank: int
    layers: tuple[int, int] | None
    is_ready: bool = False


@dataclass(frozen=True, slots=True)
class NodeView:
    """A node that has joined, and what it does."""

    node: NodeStatus
    place: NodePlace | None
    """None: it has no layers."""
    idle_reason: str | None
    slowdown: float | None
    is_drained: bool
    expected: Versions
    """By distribution that has another version: the one it should have."""
    unreached: tuple[str, ...]
    """The nodes to which it cannot connect."""

    @property
    def state(self) -> NodeState:
        """What it does."""
        return "idle" if self.place is None else "serving" if self.place.is_ready else "loading"

    def does_as(self, other: NodeView) -> bool:
        """Return whether it is the same process and does the same; its figures always vary a little."""
        is_same = self.node.pid == other.node.pid and (self.node.profile is None) == (other.node.profile is None)
        return is_same and self._does == other._does

    @property
    def _does(self) -> tuple[object, ...]:
        return self.place, self.idle_reason, self.slowdown, self.is_drained


@dataclass(frozen=True, kw_only=True, slots=True)
class ClusterView:
    """The state of a server's cluster; the values of other layers, so that a look at it costs little."""

    main: str
    """The model that answers requests which name none; empty: none is loaded."""
    models: tuple[tuple[str, ModelState, str], ...]
    """The id, the state and the last error of each model."""
    health: Health
    replicas: Mapping[str, Sequence[ReplicaStatus]]
    """By model."""
    waiting: Sequence[NodeStatus]
    members: tuple[NodeView, ...]
    plan: PlanStatus | None


def read_cluster(models: ServedModels) -> ClusterView:
    """Return the whole state of a server's cluster."""
    services = models.services
    main = services[0].model_id if services else ""
    replicas = {service.model_id: describe_replicas(service.engine) for service in services}
    plans = {model: models.find_plan(model) for model in replicas}
    return ClusterView(
        main=main,
        models=tuple((each.id, each.status, each.error) for each in models.all),
        health=models.health(),
        replicas=replicas,
        waiting=models.list_waiting(),
        members=tuple(_list_members(models.list_nodes(), replicas, plans)),
        plan=plans.get(main) or models.find_plan(""),
    )


def show_cluster(state: ClusterView) -> ClusterReply:
    """Return the answer that shows a state. Of many nodes it takes long: call it on another thread."""
    return ClusterReply(
        model=state.main,
        models=show_models(state),
        status=state.health.state,
        reason=state.health.reason,
        replicas=[show_replica(each, model) for model, found in state.replicas.items() for each in found],
        waiting=[show_node(each) for each in state.waiting],
        nodes=[show_member(each) for each in state.members],
        plan=show_plan(state),
    )


def show_models(state: ClusterView) -> list[ClusterModelReply]:
    """Return the reply for each model."""
    return [ClusterModelReply(id=name, state=each, error=error or None) for name, each, error in state.models]


def show_member(member: NodeView) -> MemberReply:
    """Return the reply for a node."""
    place = member.place
    return MemberReply(
        **describe_node(member.node) | {"unreached": list(member.unreached)},
        state=member.state,
        model=place.model if place else None,
        replica=place.rank if place else None,
        layers=list(place.layers) if place and place.layers else None,
        idle_reason=member.idle_reason,
        slowdown=member.slowdown,
        labels=dict(member.node.profile.labels) if member.node.profile else {},
        versions=dict(member.node.versions),
        expected_versions=dict(member.expected),
        drained=member.is_drained,
    )


def _list_members(
    nodes: Sequence[NodeStatus],
    replicas: Mapping[str, Sequence[ReplicaStatus]],
    plans: Mapping[str, PlanStatus | None],
) -> Iterator[NodeView]:
    """Yield each node with what it does; a planned stage counts also before its node has loaded it."""
    places: dict[str, NodePlace] = {}
    for model, found in replicas.items():
        places.update(find_places(model, found, plans[model]))
    found_plans = [plan for plan in plans.values() if plan is not None]
    idle = {name: reason for plan in found_plans for name, reason in plan.idle.items()}
    slowdowns = {name: factor for plan in found_plans for name, factor in plan.slowdowns.items()}
    drained = {machine for plan in found_plans for machine in plan.drained}
    unreached: dict[str, list[str]] = {}
    for one, other in sorted({pair for plan in found_plans for pair in plan.unreachable}):
        unreached.setdefault(one, []).append(other)
    expected = find_expected(node.versions for node in nodes)
    for node in nodes:
        place = places.get(node.name)
        yield NodeView(
            node,
            place,
            idle.get(node.name) if place is None else None,
            slowdowns.get(node.name, 1.0) if found_plans else None,
            name_machine(node.name) in drained,
            {name: expected[name] for name, found in node.versions.items() if found != expected[name]},
            # The plan counts with what was tried since the node has reported.
            tuple(unreached.get(node.name, ()) if found_plans else sorted(node.unreached)),
        )


def find_places(model: str, replicas: Sequence[ReplicaStatus], plan: PlanStatus | None) -> dict[str, NodePlace]:
    """Return the place of each node that has, or is to have, layers of a model."""
    places: dict[str, NodePlace] = {}
    for planned in plan.replicas if plan else ():
        for placed in planned.stages:
            places[placed.node] = NodePlace(model, planned.rank, (placed.layers.start, placed.layers.stop))
    for replica in replicas:
        is_ready = replica.health.state == "ready"
        for stage in (each for each in replica.stages if each.pid):
            layers = (stage.layers.start, stage.layers.stop) if stage.layers else None
            if (node := holder_of(stage.node)) not in places or is_ready:
                places[node] = NodePlace(model, replica.rank, layers, is_ready)
    return places


def show_plan(state: ClusterView) -> PlanReply | None:
    """Return the reply for the plan, or None without one."""
    if (plan := state.plan) is None:
        return None
    found = {replica.rank: replica for replica in state.replicas.get(state.main, ())}
    return PlanReply(
        replicas=[_show_planned(each, found.get(each.rank)) for each in plan.replicas],
        predicted=show_prediction(plan.estimate) if plan.estimate is not None else None,
        waits_for=plan.waits_for or None,
        join_command=plan.join_command or None,
        term=plan.term or None,
        standbys=list(plan.standbys),
        drained=sorted(plan.drained),
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
        predicted=show_prediction(planned.estimate),
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


def show_prediction(estimate: Estimate | PipelineEstimate) -> PredictionReply:
    """Return the reply for a prediction."""
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

"""Builds the status of replicas, stages and nodes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace

from parallax_core.contracts.engine import Engine, EngineStats, Health
from parallax_core.contracts.stage import StageInfo
from parallax_core.contracts.status import Described, NodeStatus, ReplicaStatus, RunningRequest, StageStatus
from parallax_core.engine.head import Head
from parallax_core.node.executor.base import StageLocation
from parallax_core.node.membership.joined_node import JoinedNode
from parallax_core.node.membership.spares import Spare
from parallax_core.node.pipeline.driver import PipelineDriver
from parallax_core.node.routing.replica import Replica


def describe_stages(
    locations: Sequence[StageLocation], infos: Sequence[StageInfo], head: Head | None, driver: PipelineDriver | None
) -> Iterator[StageStatus]:
    """Yield the status of each stage; ``infos``, ``head`` and ``driver`` are missing if nothing was ever loaded."""
    for stage, location in enumerate(locations):
        status = StageStatus(stage=stage, **asdict(location))
        if head is not None and driver is not None and len(infos) == len(locations):  # while stages move, they differ
            status = _add_model(status, infos[stage], head.stats())
            status = _add_pace(status, head, driver.queued[stage])
        yield status


def describe_replica(replica: Replica) -> ReplicaStatus:
    """Return the status of a replica with the router's counts; only its health if its engine is not `Described`."""
    engine: Engine = replica.engine
    statuses = engine.describe() if isinstance(engine, Described) else (ReplicaStatus(health=engine.health()),)
    return replace(
        statuses[0],
        rank=replica.rank,
        is_drained=replica.is_drained,
        pending_tokens=replica.load.pending_tokens,
        num_requests=replica.load.num_requests,
    )


def describe_engine(health: Health, head: Head | None, num_losses: int, stages: Iterator[StageStatus]) -> ReplicaStatus:
    """Return the status of a replica made of stages."""
    stats = head.stats() if head else EngineStats()
    return ReplicaStatus(
        health=health,
        num_requests=stats.running + stats.waiting,
        stats=stats,
        num_losses=num_losses,
        hop_s=head.stage_clock.hop_s if head else None,
        limits=head.limits if head else None,
        running=tuple(_list_running(head)) if head else None,
        stages=tuple(stages),
    )


def _list_running(head: Head) -> Iterator[RunningRequest]:
    for name, sequence in {each.request.id: each for each in head.cache.running.values()}.items():
        first, drawn = sequence.siblings[0], sum(len(each.output) for each in sequence.siblings)
        yield RunningRequest(name, min(first.planned, first.num_prompt), drawn)


def describe_node(node: JoinedNode) -> NodeStatus:
    """Return the status of a node that has joined."""
    if node.status is None:
        node.status = _describe_node(node)
    return node.status


def _describe_node(node: JoinedNode) -> NodeStatus:
    join, reported = node.join, node.reported
    return NodeStatus(
        name=node.name,
        host=join.host,
        pid=join.pid,
        address=join.address,
        backends=join.backends,
        profile=reported.profile if reported else None,
        links=reported.links if reported else (),
        relays=reported.relays if reported else {},
        unreached=reported.unreached if reported else (),
        versions=reported.versions if reported else {},
    )


def describe_spares(spares: Sequence[Spare]) -> Iterator[NodeStatus]:
    """Yield the status of each spare that has a node."""
    for spare in spares:
        if spare.node is not None:
            stage, layers = spare.assignment.stage, spare.assignment.layers
            yield replace(describe_node(spare.node), stage=stage, layers=layers, is_loaded=spare.is_loaded)


def _add_model(status: StageStatus, info: StageInfo, stats: EngineStats) -> StageStatus:
    return replace(
        status,
        layers=info.layers,
        device=info.device,
        dtype=info.dtype,
        weight_bytes=info.weight_bytes,
        pools=tuple(pool for pool in stats.pools if pool.stage == status.stage),
    )


def _add_pace(status: StageStatus, head: Head, queued: int) -> StageStatus:
    clock, stage = head.stage_clock, status.stage
    return replace(
        status, steps=clock.steps[stage], tokens=clock.tokens[stage], queued=queued, step_time=clock.step_time(stage)
    )

"""The pipelines that a coordinator keeps, and how they change."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Protocol

from parallax_cluster.layer_plan import Stages, list_hops, name_member
from parallax_cluster.node.coordinator.planned import PlannedExecutor
from parallax_cluster.rebalancing.rollout import Rollout
from parallax_core.api import Engine
from parallax_core.node.pipeline.engine import PipelineEngine


@dataclass(frozen=True, slots=True)
class PlannedPipeline:
    """A pipeline of the plan."""

    engine: PipelineEngine
    executor: PlannedExecutor

    @property
    def is_ready(self) -> bool:
        """Whether it serves with the stages that are planned."""
        return self.executor.is_settled and self.engine.health().state == "ready"


class Replicas(Protocol):
    """Where pipelines are added as replicas; a `Router`."""

    def add(self, rank: int, engine: Engine) -> None:
        """Add a replica of a rank that no other has, and start it."""

    async def remove(self, rank: int) -> None:
        """Stop a replica for good; its requests go on on others."""


class PlannedPipelines:
    """The pipelines by rank. The first is there from the beginning; the others come and go with the plan."""

    def __init__(self, open_pipeline: Callable[[int], PlannedPipeline]) -> None:
        """Keep pipelines that ``open_pipeline`` makes, not started, for a rank."""
        self._open = open_pipeline
        self._pipelines = {0: open_pipeline(0)}
        self._rollout = Rollout({}, {}, (), 0.0)
        self._removals: set[asyncio.Task[None]] = set()

    @property
    def engines(self) -> list[PipelineEngine]:
        """The engines of all pipelines, by rank."""
        return [self._pipelines[rank].engine for rank in sorted(self._pipelines)]

    @property
    def current(self) -> dict[int, Stages]:
        """The present or requested stages of each pipeline, by rank; without pipelines that have no stages."""
        return {rank: each.executor.planned for rank, each in self._pipelines.items() if each.executor.planned}

    @property
    def users(self) -> set[str]:
        """The nodes that have stages, and those that are to have some."""
        both = (*self.current.values(), *self._rollout.planned.values())
        return {stage.node for stages in both for stage in stages}

    @property
    def hops(self) -> set[tuple[str, str]]:
        """The links of serving pipelines: the node of each stage, and that of the next."""
        ready = (each.executor.planned for each in self._pipelines.values() if each.is_ready)
        return {hop for stages in ready for hop in list_hops(stages)}

    @property
    def opening(self) -> set[str]:
        """The nodes of pipelines that are being opened, or have lost a stage."""
        unready = (each.executor.planned for each in self._pipelines.values() if not each.is_ready)
        return {stage.node for stages in unready for stage in stages}

    @property
    def pending(self) -> frozenset[int]:
        """The ranks that still have to move, or are not ready yet."""
        return self._rollout.pending

    def begin(self, planned: Mapping[int, Stages], nodes: Collection[str], now: float) -> None:
        """Set ``planned`` as the goal of `advance`, which may use ``nodes`` only."""
        current = self.current
        broken = [rank for rank, stages in current.items() if any(stage.node not in nodes for stage in stages)]
        self._rollout = Rollout(current, planned, broken, now)

    def advance(self, replicas: Replicas, now: float) -> None:
        """Move the pipelines that may move now, and add them to ``replicas`` or remove them."""
        planned = self._rollout.planned
        if planned:  # otherwise all wait for a plan
            for rank in self._pipelines.keys() - self.current.keys() - planned.keys() - {0}:
                self._remove(rank, replicas)
        for rank in sorted(self._rollout.advance(lambda rank: self._pipelines[rank].is_ready, now)):
            if rank not in planned:
                self._remove(rank, replicas)
                continue
            if is_new := rank not in self._pipelines:
                self._pipelines[rank] = self._open(rank)
            self._pipelines[rank].executor.move(planned[rank])
            if is_new:
                replicas.add(rank, self._pipelines[rank].engine)

    def stop_broken(self, nodes: Collection[str]) -> None:
        """Suspend pipelines with a stage on a node outside ``nodes``; the others stay as they are."""
        self._rollout = Rollout({}, {}, (), 0.0)
        for each in self._pipelines.values():
            if any(stage.node not in nodes for stage in each.executor.planned):
                each.executor.move(())

    def are_free(self, stages: Stages) -> bool:
        """Return whether no pipeline has, or is to have, a node of ``stages``, or the lease of one there."""
        taken = {name_member(stage) for each in self.current.values() for stage in each}
        return taken.isdisjoint(map(name_member, stages))

    def fail(self, reason: str) -> None:
        """End all pipelines for good."""
        for each in self._pipelines.values():
            each.executor.fail(reason)

    async def close(self) -> None:
        """Wait for no pipeline that is being removed."""
        for task in self._removals:
            task.cancel()
        await asyncio.gather(*self._removals, return_exceptions=True)

    def _remove(self, rank: int, replicas: Replicas) -> None:
        del self._pipelines[rank]
        removal = asyncio.create_task(replicas.remove(rank))
        self._removals.add(removal)
        removal.add_done_callback(self._removals.discard)

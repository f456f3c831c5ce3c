"""One model on the joined machines: its nodes, its pipelines, and the service of its requests."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from parallax_cluster.layer_plan import LayerPlan, Planner, name_member
from parallax_cluster.node.coordinator.coordinator import Coordinator, Describe
from parallax_cluster.node.coordinator.pipelines import PlannedPipeline
from parallax_cluster.node.coordinator.planned import PlannedExecutor, Planning, describe_places
from parallax_cluster.node.coordinator.rooms import MachineRooms, ModelProfiles
from parallax_cluster.node.coordinator.variant_engine import AnswerWeights, VariantEngine
from parallax_cluster.node.executor.variant_weights import VariantWeights
from parallax_cluster.placement.demand import weigh_layers
from parallax_cluster.placement.what_if import change_cluster
from parallax_cluster.planned_routing import PlannedRouting
from parallax_core.api import ParallaxError, PlacedStage
from parallax_core.api.deployment import NodeProgress, PlannedReplica, PlanStatus
from parallax_core.api.node import SHUTTING_DOWN, WatchedWork, describe_error
from parallax_core.deploy.deployment import Deployment, ReplicaEngine
from parallax_core.deploy.executors import RemoteStages
from parallax_core.deploy.services import ServiceMaker
from parallax_core.node.executor.remote import RemoteExecutor
from parallax_core.node.membership.assignment import StageAssignment
from parallax_core.node.membership.joined_node import JoinedNode
from parallax_core.node.membership.supply import NodeSupply
from parallax_core.node.pipeline.engine import PipelineEngine

logger = logging.getLogger(__name__)

PATIENCE_S = 15.0
"""Seconds to wait for a node that a plan names and that is not free: other pipelines give theirs back at once."""
GATHER_S = 60.0
"""Seconds that machines may take to start a process for a model, before those that have one are used."""
PLAN_S = 60.0
"""Seconds that the first plan for a model may take."""
MOST_FURTHER = 64
"""Nodes that a change to predict may add: a search for thousands would hold up the server."""
LOOK_S = 0.1
"""Seconds between two looks at how far a model is."""
MOST_LOST = 2
"""The most nodes that may be lost while a model is loaded; it may be the model that kills them."""


class JoinedModel:
    """A model that is being loaded on the machines that have joined, or is loaded; a `HostedModel`.

    The model with which the server starts waits for machines as long as that takes. One that is loaded later is loaded
    on the machines that are there, or not at all.
    """

    def __init__(
        self, deployment: Deployment, planner: Planner, describe: Describe, rooms: MachineRooms, maker: ServiceMaker
    ) -> None:
        """Get nodes for ``deployment``, and make its service.

        Args:
            deployment: the model, and how its stages are made.
            planner: chooses the pipelines.
            describe: returns the profiles of the machines.
            rooms: divides the memory of the machines.
            maker: makes the service.
        """
        assert isinstance(deployment.stages, RemoteStages), "it listens for nodes"
        self.deployment, self._stages, self._planner, self._rooms = deployment, deployment.stages, planner, rooms
        self._options = replace(deployment.pipeline, releases_requests=lambda: self.coordinator.can_release)
        self._shares: dict[str, tuple[PlacedStage, float]] = {}
        """By node: its stage, and the share of its machine's memory that it got for that."""
        self.waits = False
        """Whether it waits for machines."""
        self._following: WatchedWork | None = None
        self._tell = maker.tell_loss(deployment.model_id)
        self._variants, self._weights, self._answers = planner.variants, self._stages.weights, AnswerWeights()
        if self._variants is not None:
            self._weights = VariantWeights(self._weights, self._variants)
        self.nodes = rooms.pool.open(deployment.model_id)
        described = ModelProfiles(self.nodes, rooms, describe, self._stages.model, planner.variants)
        self.coordinator = Coordinator(self.nodes, planner, described.describe, self._open_pipeline)
        self.coordinator.drained = rooms.pool.drained.names
        self.nodes.find_use = self.find_use
        self._unplanned = self.coordinator.plan
        self._held: tuple[LayerPlan, Mapping[str, int]] = self._unplanned, {}
        """The bytes of the layers that each node has by a plan."""
        self._counted: tuple[LayerPlan, Mapping[int, float]] = self._unplanned, {}
        """The requests of each pipeline by a plan."""
        routed = replace(deployment, routing=PlannedRouting(deployment.routing, self._count_planned))
        self.service, self._router = maker.make(routed, lambda: self.engines)

    def _count_planned(self, rank: int) -> float | None:
        """Return the requests that the latest plan gives a pipeline."""
        if self._counted[0] is not (plan := self.coordinator.plan):
            pairs = zip(plan.pipelines, plan.estimate.pipelines, strict=True)
            self._counted = plan, {each: estimate.num_requests for each, estimate in pairs}
        return self._counted[1].get(rank)

    @property
    def engines(self) -> list[ReplicaEngine]:
        """The engines of the pipelines, by rank."""
        return list(self.coordinator.engines)

    async def start(self) -> None:
        """Load it, and return once it can answer.

        Raises:
            ParallaxError: if it cannot be loaded, unless it waits for machines.
        """
        if not self.waits:
            await self._gather()
        self._following = WatchedWork(self.coordinator.run(self._router), self.fail)
        opening = asyncio.gather(self._router.start(), self.service.reader.start())
        if self.waits:
            await opening
        else:
            await _unless_failed(opening, self._watch())
        self.service.reader.start_others()

    async def stop(self, farewell: str = SHUTTING_DOWN) -> None:
        """End its requests, and have its nodes release their memory; see `HostedModel.stop`."""
        if self._following is not None:
            await self._following.cancel()
        for engine in self.coordinator.engines:
            engine.farewell = farewell
        await asyncio.gather(self._router.stop(), self.service.reader.stop())
        await self._rooms.pool.close(self.deployment.model_id)

    def fail(self, error: BaseException) -> None:
        """Fail its engines for good, since ``error`` ended the planning that would recover losses."""
        logger.critical("nothing is planned any more", exc_info=error)
        self.coordinator.end(f"layers are not planned any more: {describe_error(error)}")

    def list_progress(self) -> Sequence[NodeProgress]:
        """Return what each node has of it, or is about to load."""
        registry = self._rooms.pool.registry
        stages = [stage for stages in self.coordinator.plan.pipelines.values() for stage in stages]
        return [_show_progress(stage, registry.get(name_member(stage))) for stage in stages]

    def rebalance(self) -> None:
        """Plan anew soon; see `Rebalancing`."""
        self.coordinator.rebalance()

    def find_layers(self) -> LayerPlan:
        """Return the plan that is in force; see `Plannable`."""
        return self.coordinator.plan

    def plan_change(self, change: str) -> LayerPlan:
        """Return the best plan for the cluster with a change, without regard to layers that move; see `Plannable`."""
        cluster = self.coordinator.plan.cluster
        changed = change_cluster(cluster, change, len(cluster.nodes) + MOST_FURTHER)
        return self._planner.plan(changed, {}, has_begun=True)

    async def note_drained(self, node: str, *, is_drained: bool) -> None:
        """Drain the machine of a node, or take it back; see `NodePool.note_drained`."""
        await self._rooms.pool.note_drained(node, is_drained=is_drained)

    async def remove_machine(self, node: str) -> None:
        """Remove the machine of a node for good; see `NodePool.remove`."""
        await self._rooms.pool.remove(node)

    def find_plan(self, join_command: str) -> PlanStatus:
        """Return what is planned; ``join_command`` is shown with it."""
        plan, coordinator = self.coordinator.plan, self.coordinator
        pairs = zip(plan.pipelines.items(), plan.estimate.pipelines, strict=True)
        return PlanStatus(
            replicas=tuple(PlannedReplica(rank=rank, stages=stages, estimate=each) for (rank, stages), each in pairs),
            estimate=plan.estimate if plan.pipelines else None,
            idle=coordinator.idle,
            waits_for=coordinator.explain(),
            join_command=join_command,
            move=coordinator.move,
            unreachable=coordinator.unreachable,
            slowdowns=coordinator.slowdowns,
            drained=frozenset(self._rooms.pool.drained.names),
        )

    def describe_plan(self) -> tuple[str, str]:
        """Return in words where its layers are to be, or what it waits for, and why that was planned."""
        plan = self.coordinator.plan
        if not plan.pipelines:
            return (plan.waits_for, self.coordinator.reason) if plan is not self._unplanned else ("", "")
        places = (f"replica {rank}: {describe_places(stages)}" for rank, stages in plan.pipelines.items())
        return "; ".join(places), self.coordinator.reason

    def describe_health(self) -> tuple[str, str]:
        """Return whether it can answer, in a word, and the reason."""
        health = self.service.engine.health()
        return health.state, health.reason

    def find_use(self, node: str) -> int:
        """Return the bytes that the model takes on one of its nodes: weights, and the share that is for pages."""
        plan = self.coordinator.plan
        if self._held[0] is not plan:
            stages = [stage for stages in plan.pipelines.values() for stage in stages]
            self._held = plan, {stage.node: weigh_layers(self._planner.model, stage.holds) for stage in stages}
        if (weights := self._held[1].get(node)) is None:
            return 0
        _, share = self._shares.get(node, (None, 1.0))
        joined = self.nodes.get(node)
        first = self.nodes.find_first(joined) if joined is not None else None
        total = self._rooms.find_total(first) if first is not None else 0
        return int(weights + self._stages.plan.memory_fraction * share * total)

    def _open_pipeline(self, rank: int, planning: Planning) -> PlannedPipeline:
        stages, supply = self._stages, NodeSupply(self._stages.registry, patience_s=PATIENCE_S)
        remote = RemoteExecutor((), supply, stages.plan.progress, self._weights)
        executor = PlannedExecutor(remote, planning, self._assign)
        decode, on_lost = self.deployment.text.decode, partial(self._tell, rank)
        if self._variants is None:
            return PlannedPipeline(PipelineEngine(executor, decode, self._options, on_lost), executor)
        engine = VariantEngine(executor, decode, self._options, on_lost)
        engine.follow(self._variants, self._answers)
        executor.note_opened = engine.note_opened
        return PlannedPipeline(engine, executor)

    def _assign(self, stage: int, placed: PlacedStage) -> StageAssignment:
        """Return the assignment of a stage, with the share of memory that other models leave on its machine."""
        assignment = self._stages.assign(0, placed.layers, self._options)
        before, share = self._shares.get(placed.node, (None, 1.0))
        if before is None or before.holds != placed.holds:
            node = self.nodes.get(placed.node)
            share = self._rooms.find_share(node, self.nodes) if node is not None else 1.0
            self._shares[placed.node] = (placed, share)
        if self._variants is not None:
            assignment = replace(assignment, model=self._variants.find(placed.node))
        fraction, node_name = assignment.memory_fraction * share, name_member(placed)
        return replace(assignment, stage=stage, node=node_name, lease=placed.lease, memory_fraction=fraction)

    async def _gather(self) -> None:
        """Wait until each machine has a node for the model.

        Raises:
            ParallaxError: if there is no machine, or none has one in time.
        """
        if not self._rooms.pool.firsts:
            raise ParallaxError("no machine has joined", "`parallax join` on a machine has it join, with a join code")
        changed = self.nodes.changed
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(GATHER_S):
                while not self.nodes.are_complete:
                    changed.clear()
                    await changed.wait()
        changed.set()  # for the coordinator
        if not self.nodes.joined:
            message = f"no machine has started a process for the model within {GATHER_S:g} s"
            raise ParallaxError(message, "look at the logs of the machines, and at `parallax nodes`")

    async def _watch(self) -> None:
        """Wait until it is certain that the model cannot be loaded on the machines that are there.

        Raises:
            ParallaxError: always; it says why.
        """
        until = asyncio.get_running_loop().time() + PLAN_S
        while True:
            await asyncio.sleep(LOOK_S)
            plan = self.coordinator.plan
            if plan is self._unplanned:
                if asyncio.get_running_loop().time() > until:
                    message = f"the model could not be planned within {PLAN_S:g} s"
                    raise ParallaxError(message, "the server's log says more")
            elif not plan.pipelines:
                raise ParallaxError(f"the model cannot be loaded: {self.coordinator.explain()}", self._hint())
            if self.nodes.num_lost > MOST_LOST:
                message = f"{self.nodes.num_lost} nodes were lost while they loaded the model"
                raise ParallaxError(message, "their memory may not suffice; the logs of the machines say more")

    def _hint(self) -> str:
        if self.coordinator.unusable:
            return "fix the reported problems, or let another machine join"
        if len(self._rooms.pool.models) > 1:
            return "other models take memory: unload one first, or switch with --drain-first"
        return "let another machine join, or choose a smaller model"


async def _unless_failed(opening: asyncio.Future[Any], watching: Coroutine[None, None, None]) -> None:
    """Wait for ``opening``, and cancel it if ``watching`` raises first; raises what either raises."""
    watch = asyncio.create_task(watching)
    try:
        await asyncio.wait([opening, watch], return_when=asyncio.FIRST_COMPLETED)
        if opening.done():
            opening.result()
        else:
            watch.result()
    finally:
        for task in (opening, watch):
            task.cancel()
        await asyncio.gather(opening, watch, return_exceptions=True)


def _show_progress(stage: PlacedStage, node: JoinedNode | None) -> NodeProgress:
    layers = (stage.layers.start, stage.layers.stop)
    if node is None or (loading := node.loading) is None:
        return NodeProgress(node=stage.node, layers=layers)
    total = None if loading.total < 0 else loading.total
    return NodeProgress(
        node=stage.node, layers=layers, task=loading.task, done=loading.done, total=total, unit=loading.unit
    )

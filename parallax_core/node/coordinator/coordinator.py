"""Keeps the pipelines of a cluster as its planner says, while nodes join, leave and are lost."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Protocol

from parallax_core.cluster.layer_plan import LayerPlan, LayerPlanner, Stages
from parallax_core.contracts.engine import Engine
from parallax_core.contracts.placement import ClusterProfile
from parallax_core.node.coordinator.planned import PlannedExecutor, Planning, describe_places
from parallax_core.node.membership.registry import JoinedNode, NodeRegistry
from parallax_core.node.pipeline.engine import PipelineEngine
from parallax_core.pages.budget import format_bytes

logger = logging.getLogger(__name__)

SETTLE_S = 0.2
"""Seconds to wait for more news after the first: machines that start together join together."""
LOOK_S = 5.0
"""The most seconds between two looks at the nodes."""
CALM_S = 60.0
"""The least seconds between two plans for the same nodes, whose figures have changed."""
EXCLUDED_S = 60.0
"""Seconds for which a node that could not load its layers gets none."""


@dataclass(frozen=True, slots=True)
class PlannedPipeline:
    """A pipeline of the plan."""

    engine: PipelineEngine
    executor: PlannedExecutor


class Replicas(Protocol):
    """Where pipelines are added as replicas; a `Router`."""

    def add(self, rank: int, engine: Engine) -> None:
        """Add a replica of a rank that no other has, and start it."""

    async def remove(self, rank: int) -> None:
        """Stop a replica for good; its requests go on on others."""


@dataclass(frozen=True, slots=True)
class UsableNodes:
    """The nodes that may be used, and why the others may not, by name."""

    cluster: ClusterProfile
    others: Mapping[str, str]


Describe = Callable[[Collection[JoinedNode]], UsableNodes]
"""Returns the profile of the nodes that may be used."""
Known = tuple[ClusterProfile, dict[int, Stages]]
"""What a plan is made from: the nodes, and the stages of each pipeline so far."""
OpenPipeline = Callable[[int, Planning], PlannedPipeline]
"""Makes the pipeline of a rank, not started."""


class Coordinator:
    """Plans the pipelines of one model over the nodes that have joined a registry. Belongs to one event loop.

    The first pipeline is there from the beginning, and waits for a plan; the others come and go with the plan.
    """

    def __init__(
        self, registry: NodeRegistry, planner: LayerPlanner, describe: Describe, open_pipeline: OpenPipeline
    ) -> None:
        """Give the nodes of ``registry`` the layers that ``planner`` chooses by what ``describe`` says of them."""
        self._registry = registry
        self._planner = planner
        self._describe = describe
        self._open = open_pipeline
        self._excluded: dict[str, tuple[float, str]] = {}
        """By node: until when it is not used, and why."""
        self._leaving: dict[str, JoinedNode] = {}
        self._known: Known | None = None
        self._planned_at = 0.0
        self._has_begun = False
        self._others: Mapping[str, str] = {}
        self._planned = asyncio.Event()
        self._removals: set[asyncio.Task[None]] = set()
        self._pipelines = {0: open_pipeline(0, self)}
        self.plan = LayerPlan(cluster=ClusterProfile(nodes=()), waits_for="no node has joined")
        """The latest plan."""

    @property
    def engines(self) -> list[PipelineEngine]:
        """The engines of all pipelines, by rank."""
        return [self._pipelines[rank].engine for rank in sorted(self._pipelines)]

    @property
    def idle(self) -> dict[str, str]:
        """Why nodes have no layers, by name."""
        return {**self.plan.idle, **self._others}

    def explain(self) -> str:
        """Return what the cluster waits for; empty: nothing."""
        if not self.plan.waits_for:
            return ""
        return "; ".join([self.plan.waits_for, *(f"node {name!r}: {reason}" for name, reason in self._others.items())])

    def exclude(self, node: str, reason: str) -> None:
        """Plan without a node for `EXCLUDED_S`; one that leaves gets nothing anyway."""
        if node in self._leaving:
            return
        logger.warning("node gets no layers for %g s node=%s: %s", EXCLUDED_S, node, reason)
        self._excluded[node] = (_now() + EXCLUDED_S, reason)
        self._registry.changed.set()

    async def replace(self, node: str) -> None:
        """Plan without a node, which leaves; return once the model has another place."""
        self._leaving.update({each.name: each for each in self._registry.joined if each.name == node})
        self._registry.note_leaving(node)
        self._registry.changed.set()
        while node in self._leaving and (self._is_used(node) or not self.plan.pipelines):
            self._planned.clear()
            await self._planned.wait()

    async def run(self, replicas: Replicas) -> None:
        """Plan whenever nodes have changed, and have ``replicas`` follow the plan, until cancelled."""
        try:
            while True:
                await self._await_news()
                self._registry.changed.clear()
                usable = self._find_usable()
                known = (usable.cluster, self._list_current())
                self._others = usable.others
                if self._is_news(known):
                    await self._replan(known, replicas)
                elif not self.plan.pipelines:  # a node that was not to be used may be gone now
                    self._stop_broken()
                self._planned.set()
        finally:
            for task in self._removals:
                task.cancel()
            await asyncio.gather(*self._removals, return_exceptions=True)

    def _is_news(self, known: Known) -> bool:
        """Return whether to plan again; figures of the same nodes change all the time, and little."""
        if self._known is None or self._known[1] != known[1]:
            return True
        names = [{node.name for node in cluster.nodes} for cluster, _ in (self._known, known)]
        return names[0] != names[1] or (known != self._known and _now() > self._planned_at + CALM_S)

    async def _replan(self, known: Known, replicas: Replicas) -> None:
        self._known, self._planned_at = known, _now()
        try:
            plan = await asyncio.to_thread(self._planner.plan, *known, has_begun=self._has_begun)
        except Exception:  # the next nodes may be others, whatever the error is
            logger.exception("cluster cannot be planned")
            return
        self._apply(plan, replicas)
        self._known = (known[0], self._list_current())

    async def _await_news(self) -> None:
        try:
            async with asyncio.timeout(LOOK_S):
                await self._registry.changed.wait()
        except TimeoutError:
            return
        await asyncio.sleep(SETTLE_S)

    def _find_usable(self) -> UsableNodes:
        """Return the nodes that may be used now."""
        joined = {node.name: node for node in self._registry.joined}
        self._leaving = {name: node for name, node in self._leaving.items() if joined.get(name) is node}
        now = _now()
        self._excluded = {name: each for name, each in self._excluded.items() if each[0] > now}
        others = {name: reason for name, (_, reason) in self._excluded.items() if name in joined}
        others.update(dict.fromkeys(self._leaving, "it leaves"))
        usable = self._describe([node for name, node in joined.items() if name not in others])
        return UsableNodes(usable.cluster, {**usable.others, **others})

    def _list_current(self) -> dict[int, Stages]:
        return {rank: each.executor.planned for rank, each in self._pipelines.items() if each.executor.planned}

    def _is_used(self, node: str) -> bool:
        return any(stage.node == node for stages in self.plan.pipelines.values() for stage in stages)

    def _apply(self, plan: LayerPlan, replicas: Replicas) -> None:
        self.plan = plan
        if not plan.pipelines:
            logger.warning("no pipeline: %s", self.explain())
            self._stop_broken()
            return
        self._has_begun = True
        self._tell(plan)
        for rank in set(self._pipelines) - set(plan.pipelines):
            del self._pipelines[rank]
            removal = asyncio.create_task(replicas.remove(rank))
            self._removals.add(removal)
            removal.add_done_callback(self._removals.discard)
        for rank, stages in plan.pipelines.items():
            if rank in self._pipelines:
                self._pipelines[rank].executor.move(stages)
            else:
                self._pipelines[rank] = pipeline = self._open(rank, self)
                pipeline.executor.move(stages)
                replicas.add(rank, pipeline.engine)

    def _stop_broken(self) -> None:
        """Have pipelines wait that have lost a node; the others serve on, also with nodes that leave."""
        joined = {node.name for node in self._registry.joined}
        for each in self._pipelines.values():
            if any(stage.node not in joined or stage.node in self._excluded for stage in each.executor.planned):
                each.executor.move(())

    def _tell(self, plan: LayerPlan) -> None:
        if plan.movement.load_bytes or plan.movement.num_moved:
            logger.info(
                "layers move bytes=%s pipelines=%d", format_bytes(plan.movement.load_bytes), len(plan.pipelines)
            )
        for rank, stages in plan.pipelines.items():
            logger.info("pipeline %d has %s", rank, describe_places(stages))
        logger.info("predicted tokens_per_s=%.4g", plan.estimate.tokens_per_s)
        for node, reason in self.idle.items():
            logger.info("node is idle node=%s: %s", node, reason)


def _now() -> float:
    return asyncio.get_running_loop().time()

"""A coordinator over nodes of this process, which run the toy model."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from math import inf
from typing import ClassVar

from parallax_cluster.layer_plan import LayerPlanner, name_member
from parallax_cluster.node.coordinator.coordinator import Coordinator, UsableNodes
from parallax_cluster.node.coordinator.pipelines import PlannedPipeline
from parallax_cluster.node.coordinator.planned import PlannedExecutor, Planning
from parallax_cluster.placement.policy import SearchPlacement
from parallax_cluster.rebalancing.rest import MoveRules
from parallax_core.api import Delta, Finish
from parallax_core.builtin.routing import LeastPendingTokens
from parallax_core.contracts.placement import ClusterProfile, LinkProfile, PlacedStage, PlacementPolicy, ServingGoal
from parallax_core.node.executor.remote import RemoteExecutor
from parallax_core.node.membership.assignment import StageAssignment
from parallax_core.node.membership.joined_node import JoinedNode
from parallax_core.node.membership.registry import NodeRegistry
from parallax_core.node.membership.supply import NodeSupply
from parallax_core.node.pipeline.engine import PipelineEngine
from parallax_core.node.pipeline.options import PipelineOptions
from parallax_core.node.routing.router import Router
from tests.support.clusters import make_model, make_node
from tests.support.node_services import AllMembers
from tests.unit.node.cluster import MODEL, TOY, ask, open_registry, soon

SEARCH = SearchPlacement()
GOAL = ServingGoal(prompt_tokens=4, output_tokens=8, concurrency=4)
FAR = ClusterProfile(nodes=()).default_link
NEAR = LinkProfile(ends=("", ""), round_trip_s=1e-5, bandwidth=1e10)


def assign(stage: int, placed: PlacedStage) -> StageAssignment:
    name = name_member(placed)
    return StageAssignment(
        stage=stage, layers=placed.layers, model=MODEL, node=name, heartbeat_s=0.05, lease=placed.lease
    )


AT_ONCE = MoveRules(rest_s=0.0)
"""Moves may follow each other at once."""


@dataclass
class PlannedCluster:
    """A coordinator with its registry and router; each node has memory for 1.5 of the toy's 3 layers by default."""

    patience_s: ClassVar = inf
    registry: NodeRegistry
    rooms: Mapping[str, float] = field(default_factory=dict)
    """By node: the layers that its memory holds."""
    min_nodes: int = 0
    rules: MoveRules = AT_ONCE
    policy: PlacementPolicy = SEARCH
    link: LinkProfile = FAR
    silent: set[str] = field(default_factory=set)
    """Nodes that have not said what they have."""

    def __post_init__(self) -> None:
        model = make_model(len(TOY.layers), 1.0)
        planner = LayerPlanner(policy=self.policy, model=model, goal=GOAL, min_nodes=self.min_nodes, rules=self.rules)
        self.coordinator = Coordinator(AllMembers(self.registry), planner, self.describe, self.open_pipeline)
        self.router = Router(self.coordinator.engines, LeastPendingTokens(), lambda: 200)

    def describe(self, nodes: Collection[JoinedNode]) -> UsableNodes:
        has_leases = self.policy is not SEARCH
        found = (make_node(node.name, self.rooms.get(node.name, 1.5)) for node in nodes if node.name not in self.silent)
        profiles = tuple(replace(each, leases=has_leases) for each in found)
        loaded = {node.name: node.loaded.layers for node in nodes if node.loaded is not None}
        others = {node.name: "it is silent" for node in nodes if node.name in self.silent}
        return UsableNodes(ClusterProfile(nodes=profiles, default_link=self.link), others, loaded)

    def open_pipeline(self, rank: int, planning: Planning) -> PlannedPipeline:
        del rank
        executor = PlannedExecutor(
            RemoteExecutor((), NodeSupply(self.registry, patience_s=self.patience_s)), planning, assign
        )
        options = PipelineOptions(releases_requests=lambda: self.coordinator.can_release)
        return PlannedPipeline(PipelineEngine(executor, lambda tokens: "x" * len(tokens), options), executor)

    @property
    def places(self) -> dict[int, list[tuple[str, int, int]]]:
        """By rank: the node and the layers of each stage that is open."""
        return {
            status.rank: [(each.node, each.layers.start, each.layers.stop) for each in status.stages if each.layers]
            for status in self.router.describe()
            if status.health.state == "ready"
        }

    @property
    def users(self) -> set[str]:
        """The nodes with open stages."""
        return {node for stages in self.places.values() for node, *_ in stages}

    async def answer(self, prompt: tuple[int, ...], length: int) -> tuple[list[int], Finish]:
        deltas: list[Delta] = []

        async def read() -> None:
            deltas.extend([delta async for delta in self.router.submit(ask(prompt, length))])

        await soon(read())
        assert deltas[-1].finish is not None
        return [token for delta in deltas for token in delta.tokens], deltas[-1].finish

    async def check(self, prompt: tuple[int, ...] = (1, 2, 3), length: int = 12) -> None:
        tokens, finish = await self.answer(prompt, length)
        assert (tokens, finish.reason) == (TOY.continuation(prompt, length), "length"), finish.message


@asynccontextmanager
async def coordinated(
    rooms: Mapping[str, float] | None = None,
    min_nodes: int = 0,
    rules: MoveRules = AT_ONCE,
    policy: PlacementPolicy = SEARCH,
    link: LinkProfile = FAR,
) -> AsyncIterator[PlannedCluster]:
    """Run a coordinator and its router, which starts as soon as the model fits."""
    async with open_registry() as registry:
        cluster = PlannedCluster(registry, rooms or {}, min_nodes, rules, policy, link)
        running = asyncio.create_task(cluster.coordinator.run(cluster.router))
        starting = asyncio.create_task(cluster.router.start())
        try:
            yield cluster
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            await soon(cluster.router.stop())
            await asyncio.gather(starting, return_exceptions=True)

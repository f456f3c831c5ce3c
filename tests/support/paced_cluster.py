"""A coordinator over worker processes that run a toy as slowly as the devices for which they are taken."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncIterator, Collection, Iterable
from contextlib import asynccontextmanager
from os import kill
from pathlib import Path

import msgspec

from parallax_cluster.layer_plan import LayerPlanner
from parallax_cluster.node.coordinator.coordinator import Coordinator, UsableNodes
from parallax_cluster.node.coordinator.pipelines import PlannedPipeline
from parallax_cluster.node.coordinator.planned import PlannedExecutor, Planning
from parallax_cluster.placement.policy import SearchPlacement
from parallax_cluster.rebalancing.rest import MoveRules
from parallax_cluster.rebalancing.slowdown import SlowdownRules
from parallax_core.api import TransportPlan
from parallax_core.builtin.routing import LeastPendingTokens
from parallax_core.contracts.placement import (
    ClusterProfile,
    DeviceProfile,
    LayerDemand,
    ModelDemand,
    NodeProfile,
    PlacedStage,
    ServingGoal,
)
from parallax_core.node.executor.remote import RemoteExecutor
from parallax_core.node.membership.assignment import StageAssignment
from parallax_core.node.membership.joined_node import JoinedNode
from parallax_core.node.membership.registry import NodeRegistry
from parallax_core.node.membership.supervisor import WorkerSupervisor
from parallax_core.node.membership.supply import NodeSupply
from parallax_core.node.pipeline.engine import PipelineEngine
from parallax_core.node.pipeline.options import PipelineOptions
from parallax_core.node.routing.router import Router
from parallax_core.testing.node import NodePlan, name_toy
from parallax_transport_zmq.address import place_local
from parallax_transport_zmq.transport import ZmqTransport
from tests.support.crowd import TOY, now
from tests.support.node_services import AllMembers, equip
from tests.support.paced_node import PacedPlan

GB = 10**9
TIMEOUT_S = 1.0
CONVERGE_S = 60.0
TRANSPORT = "parallax_transport_zmq.transport:ZmqTransport"
QUICK = MoveRules(slowdown=SlowdownRules(interval_s=0.25, span_s=2.5, min_intervals=6), rest_s=3.0)
"""Ten times as quick as usual, since other changes follow each other in seconds, too."""


def make_model() -> ModelDemand:
    """Return the toy as the planner sees it: three layers of a gigabyte."""
    layer = LayerDemand(weights=GB, read=GB, flops=GB, kv=4096)
    return ModelDemand(layers=(layer,) * len(TOY.layers), hidden=8192)


class PacedFleet:
    """The worker processes, and what is told of them."""

    def __init__(self, folder: Path, registry: NodeRegistry) -> None:
        self._folder = folder
        self._registry = registry
        self.supervisor = WorkerSupervisor(self._make_command)
        self.profiles: dict[str, NodeProfile] = {}
        self.pids: dict[str, int] = {}
        """The processes that were started and not told to end."""
        self.all_pids: set[int] = set()
        self.slow: set[str] = set()
        """The nodes that were made slow."""

    def _make_command(self, node: str) -> list[str]:
        listen, address = place_local(self._folder, node), self._registry.address
        base = NodePlan(node=node, transport=TRANSPORT, connect=address, listen=listen, timeout_s=TIMEOUT_S)
        plan = PacedPlan(node=base, device=self.profiles[node].device, model=make_model())
        return [sys.executable, "-m", "tests.support.paced_node", msgspec.json.encode(plan).decode()]

    async def join(self, room: float, power: float) -> str:
        """Start a node that has room for so many layers, and computes ``power`` FLOPs per second."""
        node = f"node/{len(self.profiles)}"
        device = DeviceProfile(memory=int(room * GB), flops=power, bandwidth=power / 10)
        self.profiles[node] = NodeProfile(name=node, device=device)
        await self.supervisor.restart(node)
        self.pids[node] = pid = self.supervisor.pids[-1]
        self.all_pids.add(pid)
        return node

    def describe(self, nodes: Collection[JoinedNode]) -> UsableNodes:
        """Return the profiles of nodes; see `Coordinator`."""
        return UsableNodes(ClusterProfile(nodes=tuple(self.profiles[node.name] for node in nodes)), {})

    def slow_down(self, node: str) -> None:
        """Have a node compute `PacedPlan.slowdown` times as long for each step from now on."""
        self.slow.add(node)
        kill(self.pids[node], signal.SIGUSR2)


class PacedCluster:
    """A coordinator over the nodes of a fleet, and its router."""

    def __init__(self, folder: Path, concurrency: int) -> None:
        plan = TransportPlan(node="head", listen=place_local(folder, "head"), timeout_s=TIMEOUT_S)
        self.registry = equip(NodeRegistry(ZmqTransport(plan), "head"))
        self.fleet = PacedFleet(folder, self.registry)
        goal = ServingGoal(prompt_tokens=20, output_tokens=30, concurrency=concurrency)
        planner = LayerPlanner(policy=SearchPlacement(), model=make_model(), goal=goal, rules=QUICK)
        self.coordinator = Coordinator(AllMembers(self.registry), planner, self.fleet.describe, self._open)
        self.router = Router(self.coordinator.engines, LeastPendingTokens(), lambda: 200)

    def _open(self, rank: int, planning: Planning) -> PlannedPipeline:
        del rank
        executor = PlannedExecutor(RemoteExecutor((), NodeSupply(self.registry)), planning, assign)
        options = PipelineOptions(releases_requests=lambda: self.coordinator.can_release)
        return PlannedPipeline(PipelineEngine(executor, lambda tokens: "x" * len(tokens), options), executor)

    @property
    def is_converged(self) -> bool:
        """Whether the pipelines that serve are those of the plan, over nodes that are there."""
        planned = {
            (rank, stage.node, stage.layers)
            for rank, stages in self.coordinator.plan.pipelines.items()
            for stage in stages
        }
        served = {
            (status.rank, stage.node, stage.layers)
            for status in self.router.describe()
            for stage in status.stages
            if status.health.state == "ready"
        }
        joined = {node.name for node in self.registry.joined}
        return bool(served) and planned == served and {node for _, node, _ in served} <= joined

    async def converge(self) -> float | None:
        """Wait until it is converged, and return the seconds; None: it is not in `CONVERGE_S`."""
        begun = now()
        while not self.is_converged:
            if now() > begun + CONVERGE_S:
                return None
            await asyncio.sleep(0.05)
        return now() - begun


def assign(stage: int, placed: PlacedStage) -> StageAssignment:
    model = name_toy(TOY)
    return StageAssignment(stage=stage, layers=placed.layers, model=model, node=placed.node, heartbeat_s=0.2)


@asynccontextmanager
async def running(cluster: PacedCluster, nodes: Iterable[tuple[float, float]]) -> AsyncIterator[None]:
    """Run the coordinator over nodes of some room and power; in the end all processes are told to end."""
    await cluster.registry.start()
    for room, power in nodes:
        await cluster.fleet.join(room, power)
    following = asyncio.create_task(cluster.coordinator.run(cluster.router))
    try:
        await cluster.router.start()
        yield
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
        await cluster.router.stop()
        await cluster.registry.stop()
        for node in cluster.fleet.profiles:
            await cluster.fleet.supervisor.end(node)

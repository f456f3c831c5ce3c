"""Machines of this process that join a head, and models of the toy on them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

from parallax_cluster.deploy.joined_model import JoinedModel
from parallax_cluster.layer_plan import LayerPlanner, limit_to_variants
from parallax_cluster.model_variants import ModelVariants
from parallax_cluster.node.coordinator.node_pool import NodePool
from parallax_cluster.node.coordinator.profiles import NodeProfiles
from parallax_cluster.node.coordinator.rooms import MachineRooms
from parallax_cluster.node.profile.head_service import note_report
from parallax_cluster.node.worker.further import FurtherNodes
from parallax_cluster.placement.policy import SearchPlacement
from parallax_cluster.wire.further import EndNode, StartNode
from parallax_cluster.wire.profile import DeviceReport, NodeReport
from parallax_core.api import Delta, Finish, Progress, Stage
from parallax_core.base.ids import further_node
from parallax_core.cluster.placement.parallel import ParallelConfig
from parallax_core.contracts.backend import StagePlan
from parallax_core.contracts.placement import PlacementPolicy, ServingGoal
from parallax_core.deploy.deployment import Deployment
from parallax_core.deploy.executors import RemoteStages
from parallax_core.models.tokenizer import ModelTokenizer
from parallax_core.node.events.delivery import EventBus
from parallax_core.node.membership.joined_node import JoinedNode
from parallax_core.node.membership.registry import NodeRegistry
from parallax_core.node.pipeline.options import PipelineOptions
from parallax_core.server.options import ServerOptions
from parallax_core.server.served_models import ServedModels
from parallax_core.testing.node import BACKEND, open_toy
from parallax_core.wire.membership import Assign
from parallax_policies.routing import RoundRobin
from tests.support.clusters import make_model
from tests.unit.deploy.readers import LocalMaker
from tests.unit.node.cluster import MODEL, TOY, Node, ask, open_registry, soon, until
from tests.unit.tinymodel import write_model

GB = 10**9
FRACTION = 0.25
"""The share of the memory of a machine that a model takes for pages."""
GOAL = ServingGoal(prompt_tokens=4, output_tokens=8, concurrency=4, memory_fraction=FRACTION)
NUM_LAYERS = len(TOY.layers)


class FurtherHere(FurtherNodes):
    """Starts the further nodes of a machine in this process, unless it cannot start any."""

    def __init__(self, machine: Machine) -> None:
        super().__init__(machine.name)
        self._machine = machine

    def start(self, message: StartNode) -> None:
        if self._machine.starts_nodes:
            self._machine.start_further(message.number)

    def end(self, message: EndNode) -> None:
        self._machine.end_further(message.number)


class Machine(Node):
    """A node that joins by itself, and starts further ones when its head asks for them."""

    def __init__(self, name: str, registry: NodeRegistry, *, starts_nodes: bool = True, backend: str = BACKEND) -> None:
        super().__init__(name, backends=(backend,))
        self.services = [FurtherHere(self)]
        self._registry = registry
        self.starts_nodes = starts_nodes
        self.further: dict[int, Node] = {}
        """The further nodes that run, by number."""
        self.open_further: Callable[[Assign, Progress], Stage] = open_toy
        """Opens the stages of further nodes."""
        self._tasks: set[asyncio.Task[object]] = set()

    def start_further(self, number: int) -> None:
        node = self.further[number] = Node(further_node(self.name, number))
        node.open = self._open_further
        self._begin(node.join(self._registry.address))

    def end_further(self, number: int) -> None:
        self._begin(self.further.pop(number).kill())

    async def kill(self) -> None:
        """End the machine at once, with all its nodes; may be called twice."""
        for number in list(self.further):
            self.end_further(number)
        await asyncio.gather(*self._tasks)
        await super().kill()

    def _open_further(self, assign: Assign, progress: Progress) -> Stage:
        return self.open_further(assign, progress)

    def _begin(self, work: Coroutine[Any, Any, object]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


class Cluster:
    """Machines that have joined a head, and the models on them."""

    def __init__(self, registry: NodeRegistry, folder: Path) -> None:
        self.registry = registry
        registry.note_join = self._report
        self.pool = NodePool(registry)
        self.rooms = MachineRooms(self.pool)
        self.served = ServedModels()
        self.maker = LocalMaker(self.served, ServerOptions(), EventBus([]))
        self.machines: dict[str, Machine] = {}
        self.models: list[JoinedModel] = []
        self._sizes: dict[str, float] = {}
        self.leases = False
        """Whether the backend of machines that join has leases."""
        self._folder = write_model(folder)

    async def join(self, name: str, memory_gb: float, *, starts_nodes: bool = True, backend: str = BACKEND) -> Machine:
        """Have a machine join."""
        self._sizes[name] = memory_gb
        machine = Machine(name, self.registry, starts_nodes=starts_nodes, backend=backend)
        self.machines[name] = machine
        await machine.join(self.registry.address)
        await until(lambda: name in {node.name for node in self.registry.joined})
        return machine

    def make(
        self,
        model_id: str,
        layer_gb: float = 1.0,
        policy: PlacementPolicy | None = None,
        variants: ModelVariants | None = None,
    ) -> JoinedModel:
        """Return a model of three layers, not started."""
        stages = RemoteStages(
            model=MODEL,
            backends=("",),
            plan=StagePlan(model=self._folder, memory_fraction=FRACTION),
            registry=self.registry,
            supervisor=None,
            heartbeat_s=0.05,
        )
        deployment = Deployment(
            model_id=model_id,
            folder=self._folder,
            text=ModelTokenizer(self._folder),
            stages=stages,
            pipeline=PipelineOptions(),
            topology=ParallelConfig(),
            routing=RoundRobin(),
        )
        planner = LayerPlanner(policy=policy or SearchPlacement(), model=make_model(NUM_LAYERS, layer_gb), goal=GOAL)
        planner = limit_to_variants(planner, variants) if variants else planner
        model = JoinedModel(deployment, planner, NodeProfiles("local/0").describe, self.rooms, self.maker)
        self.models.append(model)
        return model

    async def load(self, model_id: str, layer_gb: float = 1.0) -> JoinedModel:
        """Return a model that is loaded."""
        model = self.make(model_id, layer_gb)
        await soon(model.start())
        return model

    async def stop(self, model: JoinedModel) -> None:
        self.models.remove(model)
        await soon(model.stop())

    def _report(self, node: JoinedNode) -> None:
        memory = int(self._sizes.get(node.name, 0) * GB)
        if memory:
            device = DeviceReport(memory=memory, flops=1e13, bandwidth=1e11)
            note_report(node, NodeReport(backend="toy", device=device, leases=self.leases))


@asynccontextmanager
async def open_cluster(folder: Path) -> AsyncIterator[Cluster]:
    async with open_registry() as registry:
        cluster = Cluster(registry, folder)
        following = asyncio.create_task(cluster.pool.follow())
        try:
            yield cluster
        finally:
            for model in list(cluster.models):
                await cluster.stop(model)
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)
            for machine in cluster.machines.values():
                await machine.kill()


async def answer(model: JoinedModel, length: int = 12) -> tuple[list[int], Finish]:
    """Send a request, and return its tokens and finish."""
    deltas: list[Delta] = []

    async def read() -> None:
        deltas.extend([delta async for delta in model.service.engine.submit(ask((1, 2, 3), length))])

    await soon(read())
    assert deltas[-1].finish is not None
    return [token for delta in deltas for token in delta.tokens], deltas[-1].finish


async def check(model: JoinedModel) -> None:
    """Check that a model answers."""
    tokens, finish = await answer(model)
    assert (tokens, finish.reason) == (TOY.continuation((1, 2, 3), 12), "length"), finish.message


def places(model: JoinedModel) -> dict[str, tuple[int, int]]:
    return {each.node: each.layers for each in model.list_progress()}


@contextmanager
def held_open(progress: tuple[int, int] = (5, 10)) -> Iterator[Callable[[Assign, Progress], Stage]]:
    """Yield a function that opens stages once the context ends, after one report of progress."""
    gate = threading.Event()

    def open_later(assign: Assign, tell: Progress) -> Stage:
        tell("loading weights", *progress, "bytes")
        gate.wait(20)
        return open_toy(assign, tell)

    try:
        yield open_later
    finally:
        gate.set()

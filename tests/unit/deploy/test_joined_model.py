"""Models that are loaded and unloaded on machines of this process, which run the toy model."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from parallax_core.api import Delta, Finish, Progress, Stage
from parallax_core.base.errors import BackendFailed, ParallaxError
from parallax_core.base.ids import further_node
from parallax_core.builtin.routing import RoundRobin
from parallax_core.cluster.layer_plan import LayerPlanner
from parallax_core.cluster.placement.parallel import ParallelConfig
from parallax_core.cluster.placement.policy import SearchPlacement
from parallax_core.contracts.backend import StagePlan
from parallax_core.contracts.placement import Estimator, Placement, PlacementPolicy, PlacementProblem, ServingGoal
from parallax_core.contracts.status import NodeProgress
from parallax_core.deploy import joined_model
from parallax_core.deploy.deployment import Deployment
from parallax_core.deploy.executors import RemoteStages
from parallax_core.deploy.joined_model import JoinedModel
from parallax_core.models.tokenizer import ModelTokenizer
from parallax_core.node.coordinator.profiles import NodeProfiles
from parallax_core.node.coordinator.rooms import MachineRooms
from parallax_core.node.coordinator.sharing import SharedNodes
from parallax_core.node.events.delivery import EventBus
from parallax_core.node.membership.registry import JoinedNode, NodeRegistry
from parallax_core.node.pipeline.options import PipelineOptions
from parallax_core.node.worker.further import FurtherNodes
from parallax_core.node.worker.session import WorkerSession
from parallax_core.server.model_changes import ModelChanges, WantedChange
from parallax_core.server.options import ServerOptions
from parallax_core.server.served_models import ServedModels
from parallax_core.testing.node import open_toy
from parallax_core.wire.membership import Assign, EndNode, StartNode
from parallax_core.wire.profile import DeviceReport, NodeReport
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

    def __init__(self, name: str, registry: NodeRegistry, *, starts_nodes: bool = True) -> None:
        super().__init__(name)
        self._registry = registry
        self.starts_nodes = starts_nodes
        self.further: dict[int, Node] = {}
        """The further nodes that run, by number."""
        self.open_further: Callable[[Assign, Progress], Stage] = open_toy
        """Opens the stages of further nodes."""
        self._tasks: set[asyncio.Task[object]] = set()

    def make_session(self) -> WorkerSession:
        session = super().make_session()
        session.further = FurtherHere(self)
        return session

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
        self.shared = SharedNodes(registry)
        self.rooms = MachineRooms(self.shared)
        self.served = ServedModels()
        self.maker = LocalMaker(self.served, ServerOptions(), EventBus([]))
        self.machines: dict[str, Machine] = {}
        self.models: list[JoinedModel] = []
        self._sizes: dict[str, float] = {}
        self._folder = write_model(folder)

    async def join(self, name: str, memory_gb: float, *, starts_nodes: bool = True) -> Machine:
        """Have a machine join."""
        self._sizes[name] = memory_gb
        machine = self.machines[name] = Machine(name, self.registry, starts_nodes=starts_nodes)
        await machine.join(self.registry.address)
        await until(lambda: name in {node.name for node in self.registry.joined})
        return machine

    def make(self, model_id: str, layer_gb: float = 1.0, policy: PlacementPolicy | None = None) -> JoinedModel:
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
            node.note_report(NodeReport(backend="toy", device=DeviceReport(memory=memory, flops=1e13, bandwidth=1e11)))


@asynccontextmanager
async def open_cluster(folder: Path) -> AsyncIterator[Cluster]:
    async with open_registry() as registry:
        cluster = Cluster(registry, folder)
        following = asyncio.create_task(cluster.shared.follow())
        try:
            yield cluster
        finally:
            for model in list(cluster.models):
                await cluster.stop(model)
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)
            for machine in cluster.machines.values():
                await machine.kill()


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with open_cluster(tmp_path) as cluster:
        yield cluster


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


async def test_model_is_loaded_on_the_machines_that_are_there(cluster: Cluster) -> None:
    for name in ("a/1", "b/1"):
        await cluster.join(name, 3)
    model = await cluster.load("toy")
    await check(model)
    assert set(places(model)) == {"a/1", "b/1"}
    assert sorted(layers for span in places(model).values() for layers in range(*span)) == [0, 1, 2]
    plan = model.find_plan("parallax join plx1abc")
    assert (plan.join_command, plan.waits_for, plan.idle) == ("parallax join plx1abc", "", {})
    [replica] = plan.replicas
    assert {stage.node for stage in replica.stages} == {"a/1", "b/1"}
    assert plan.estimate is not None
    assert [replica.estimate] == list(plan.estimate.pipelines)


async def test_each_model_gets_the_memory_that_others_leave(cluster: Cluster) -> None:
    machine = await cluster.join("a/1", 10)
    first = await cluster.load("first")
    assert first.find_uses() == {"a/1": int((3 + FRACTION * 10) * GB)}
    assert [load.memory_fraction for load in machine.loads] == [FRACTION]
    second = await cluster.load("second")
    for model in (first, second):
        await check(model)
    assert (places(first), places(second)) == ({"a/1": (0, 3)}, {"a/1+1": (0, 3)})
    share = FRACTION * 0.45  # the first model leaves 4.5 of 10 GB
    assert [load.memory_fraction for load in machine.further[1].loads] == [pytest.approx(share)]
    assert second.find_uses() == {"a/1+1": pytest.approx((3 + share * 10) * GB)}


async def test_first_model_waits_for_machines(cluster: Cluster) -> None:
    model = cluster.make("toy")
    model.waits = True
    starting = asyncio.create_task(model.start())
    assert (model.find_plan("").waits_for, model.find_plan("").estimate) == ("no node has joined", None)
    await cluster.join("a/1", 2)
    await until(lambda: "there is one node, with 1.9 GiB" in model.find_plan("").waits_for)
    assert (model.find_plan("").replicas, model.list_progress()) == ((), [])
    assert not starting.done()
    await cluster.join("b/1", 3)
    await soon(starting)
    await check(model)


async def test_model_that_does_not_fit_beside_another_leaves_it_alone(cluster: Cluster) -> None:
    machine = await cluster.join("a/1", 10)
    first, second = await cluster.load("first"), cluster.make("second", 3.0)
    with pytest.raises(ParallaxError, match="the model cannot be loaded: the model needs") as caught:
        await soon(second.start())
    assert caught.value.hint == "other models take memory: unload one first, or switch with --drain-first"
    await cluster.stop(second)
    assert (set(cluster.shared.models), machine.further) == ({"first"}, {})
    await check(first)
    await check(await cluster.load("third"))
    assert len(machine.loads) == 1, "the first model was not loaded again"


async def test_model_that_is_too_large_for_all_machines_says_so(cluster: Cluster) -> None:
    await cluster.join("a/1", 2)
    model = cluster.make("toy")
    with pytest.raises(ParallaxError, match=r"the model needs 2.8 GiB for its weights") as caught:
        await soon(model.start())
    assert caught.value.hint == "have another machine join, or choose a smaller model"


async def test_damaged_model_is_an_error_with_the_reason_of_the_node(cluster: Cluster) -> None:
    machine = await cluster.join("a/1", 10)
    first, second = await cluster.load("first"), cluster.make("second")

    def refuse(assign: Assign, progress: Progress) -> Stage:
        raise BackendFailed("the weights are damaged", "fetch them again")

    machine.open_further = refuse
    with pytest.raises(ParallaxError, match=r"node 'a/1\+1': .*the weights are damaged; fetch them again"):
        await soon(second.start())
    await cluster.stop(second)
    await check(first)
    machine.open_further = open_toy
    await check(await cluster.load("second"))


async def test_model_that_kills_its_nodes_is_given_up(cluster: Cluster) -> None:
    for name in ("a/1", "b/1", "c/1", "d/1"):
        await cluster.join(name, 10)
    first, second, loop = await cluster.load("first"), cluster.make("second"), asyncio.get_running_loop()
    gone = threading.Event()

    def die(assign: Assign, progress: Progress) -> Stage:
        loop.call_soon_threadsafe(kill_loading)
        gone.wait(20)
        return open_toy(assign, progress)

    def kill_loading() -> None:
        for machine in cluster.machines.values():
            for number in [number for number, node in machine.further.items() if node.loads]:
                machine.end_further(number)

    for machine in cluster.machines.values():
        machine.open_further = die
    with pytest.raises(ParallaxError, match=r"^[34] nodes were lost while they loaded the model") as caught:
        await soon(second.start())
    gone.set()
    assert caught.value.hint == "their memory may not suffice; the logs of the machines say more"
    await cluster.stop(second)
    await check(first)


async def test_machines_that_start_no_process_are_not_waited_for_for_ever(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(joined_model, "GATHER_S", 0.2)
    await cluster.join("a/1", 20, starts_nodes=False)
    first = await cluster.load("first")
    second = cluster.make("second")
    with pytest.raises(ParallaxError, match=r"no machine has started a process for the model within 0.2 s") as caught:
        await soon(second.start())
    assert "`parallax nodes`" in caught.value.hint
    await cluster.stop(second)
    await cluster.join("b/1", 20)
    third = cluster.make("third")
    await until(lambda: bool(third.nodes.joined))
    await soon(third.start())
    assert set(places(third)) == {"b/1+1"}
    for model in (first, third):
        await check(model)


async def test_without_machines_a_further_model_is_an_error_at_once(cluster: Cluster) -> None:
    model = cluster.make("toy")
    with pytest.raises(ParallaxError, match="no machine has joined") as caught:
        await soon(model.start())
    assert "`parallax join`" in caught.value.hint


class Undecided(SearchPlacement):
    """A placement policy that fails."""

    def place(self, problem: PlacementProblem, estimator: Estimator) -> Placement:
        raise RuntimeError("no idea")


async def test_model_that_cannot_be_planned_is_an_error(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joined_model, "PLAN_S", 0.3)
    await cluster.join("a/1", 10)
    model = cluster.make("toy", policy=Undecided())
    with pytest.raises(ParallaxError, match=r"the model could not be planned within 0.3 s") as caught:
        await soon(model.start())
    assert caught.value.hint == "the server's log says more"


async def test_model_whose_requests_cannot_be_read_is_not_loaded(cluster: Cluster) -> None:
    machine = await cluster.join("a/1", 10)
    first = await cluster.load("first")
    cluster.maker.fault = BackendFailed("the tokenizer is damaged")
    second = cluster.make("second")
    before = asyncio.all_tasks()
    with pytest.raises(BackendFailed, match="the tokenizer is damaged"):
        await soon(second.start())
    await cluster.stop(second)
    await until(lambda: not asyncio.all_tasks() - before)
    assert (set(cluster.shared.models), machine.further) == ({"first"}, {})
    await check(first)


@pytest.mark.parametrize(("told", "total"), [(10, 10), (-1, None)])
async def test_progress_of_each_node_is_told_while_it_loads(cluster: Cluster, told: int, total: int | None) -> None:
    machine, model = await cluster.join("a/1", 10), cluster.make("toy")
    with held_open((5, told)) as machine.open:
        starting = asyncio.create_task(model.start())
        await until(lambda: any(each.task == "loading weights" for each in model.list_progress()))
        loading = NodeProgress(node="a/1", layers=(0, 3), task="loading weights", done=5, total=total, unit="bytes")
        assert model.list_progress() == [loading]
    await soon(starting)
    assert model.list_progress() == [NodeProgress(node="a/1", layers=(0, 3))]


async def test_loading_can_be_given_up(cluster: Cluster) -> None:
    machine = await cluster.join("a/1", 10)
    first, second = await cluster.load("first"), cluster.make("second")
    before = asyncio.all_tasks()
    with held_open() as machine.open_further:
        starting = asyncio.create_task(second.start())
        await until(lambda: bool(machine.further and machine.further[1].loads))
        starting.cancel()
        await asyncio.wait([starting])
        assert starting.cancelled()
        await cluster.stop(second)
    await until(lambda: not asyncio.all_tasks() - before)
    assert (set(cluster.shared.models), machine.further) == ({"first"}, {})
    await check(first)


async def test_model_that_was_never_started_can_be_stopped(cluster: Cluster) -> None:
    machine = await cluster.join("a/1", 10)
    await cluster.stop(cluster.make("toy"))
    assert (cluster.shared.models, machine.loads) == ({}, [])


async def test_requests_of_a_model_that_is_unloaded_end_with_the_reason(cluster: Cluster) -> None:
    machine, gate, steps = await cluster.join("a/1", 10), threading.Event(), list[object]()

    def open_slow(assign: Assign, progress: Progress) -> Stage:
        stage = open_toy(assign, progress)

        def wait(batch: object) -> None:
            steps.append(batch)
            if len(steps) > 3:
                gate.wait(20)

        stage.before_step = wait
        return stage

    machine.open = open_slow
    model = await cluster.load("toy")
    asking = asyncio.create_task(answer(model, 100))
    await until(lambda: len(steps) > 3)
    stopping = asyncio.create_task(cluster.stop(model))
    _, finish = await soon(asking)
    gate.set()
    await soon(stopping)
    assert (finish.reason, finish.message) == ("aborted", "the model was unloaded")
    await until(lambda: machine._session is not None and machine._session._held is None)
    machine.open = open_toy
    other = await cluster.load("other")
    assert places(other) == {"a/1": (0, 3)}, "it gets the node that was left"
    await check(other)


class Host:
    """Opens the models of a cluster; ``large`` does not fit anywhere."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def name(self, model: str) -> str:
        return model

    async def open(self, model: str) -> JoinedModel:
        made = self._cluster.make(model, 9.0 if model == "large" else 1.0)
        self._cluster.models.remove(made)  # the server stops it
        return made

    def remember(self, models: Sequence[str]) -> None:
        """Keep nothing."""

    def recall(self) -> Sequence[str]:
        return ()


@pytest.mark.parametrize("drain_first", [False, True])
async def test_switch_ends_with_one_model_that_answers(cluster: Cluster, *, drain_first: bool) -> None:
    machine = await cluster.join("a/1", 10)
    changes = ModelChanges(cluster.served, Host(cluster))
    changes.begin(WantedChange(action="load", model="old"))
    await soon(changes.wait())
    for model, loaded, error in (("large", "old", "the model needs"), ("new", "new", "")):
        change = changes.begin(WantedChange(action="switch", model=model, drain_first=drain_first))
        await soon(changes.wait())
        assert (change.state, error in change.error) == ("failed" if error else "done", True)
        assert (set(cluster.shared.models), len(machine.further)) == ({loaded}, 0 if drain_first or error else 1)
        hosted = cluster.served.known[loaded].hosted
        assert isinstance(hosted, JoinedModel)
        await check(hosted)
    await soon(cluster.served.stop())

"""Models that are loaded and unloaded on machines of this process, which run the toy model."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from parallax_cluster.deploy import joined_model
from parallax_cluster.deploy.joined_model import JoinedModel
from parallax_cluster.placement.policy import SearchPlacement
from parallax_cluster.server.change_request import WantedChange
from parallax_cluster.server.model_changes import UNLOADED, ModelChanges
from parallax_core.api import Progress, Stage
from parallax_core.base.errors import SHUTTING_DOWN, BackendFailed, ParallaxError, UsageError
from parallax_core.contracts.placement import Estimator, Placement, PlacementProblem
from parallax_core.contracts.status import NodeProgress
from parallax_core.testing.node import open_toy
from parallax_core.testing.toy import ToyStage
from parallax_core.wire.membership import Assign
from plugins.cluster.tests.node.coordinator.test_leases import Hub
from tests.unit.deploy.joined import (
    FRACTION,
    GB,
    Cluster,
    answer,
    check,
    held_open,
    open_cluster,
    places,
)
from tests.unit.node.cluster import soon, until


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with open_cluster(tmp_path) as cluster:
        yield cluster


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


async def test_further_machine_is_planned_without_a_move(cluster: Cluster) -> None:
    await cluster.join("a/1", 10)
    model = await cluster.load("toy")
    before, placed = model.find_layers(), places(model)
    planned = model.plan_change("+2xRTX4090@1ms")
    assert len(planned.cluster.nodes) == len(before.cluster.nodes) + 2
    assert planned.estimate.tokens_per_s > before.estimate.tokens_per_s > 0
    assert model.plan_change("-a/1").waits_for
    with pytest.raises(UsageError, match="no device"):
        model.plan_change("+1xABACUS")
    with pytest.raises(UsageError, match="makes 66 nodes"):
        model.plan_change("+65xT4")
    assert (model.find_layers(), places(model)) == (before, placed)


async def test_each_model_gets_the_memory_that_others_leave(cluster: Cluster) -> None:
    machine = await cluster.join("a/1", 10)
    first = await cluster.load("first")
    assert first.find_use("a/1") == int((3 + FRACTION * 10) * GB)
    assert [load.memory_fraction for load in machine.loads] == [FRACTION]
    second = await cluster.load("second")
    for model in (first, second):
        await check(model)
    assert (places(first), places(second)) == ({"a/1": (0, 3)}, {"a/1+1": (0, 3)})
    share = FRACTION * 0.45  # the first model leaves 4.5 of 10 GB
    assert [load.memory_fraction for load in machine.further[1].loads] == [pytest.approx(share)]
    assert second.find_use("a/1+1") == pytest.approx((3 + share * 10) * GB)


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


async def test_model_for_which_nothing_is_planned_any_more_fails(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Were its engines left as they are, the next loss would have its requests wait for ever."""
    await cluster.join("a/1", 10)
    model = await cluster.load("toy")
    monkeypatch.setattr(model.coordinator, "_find_usable", lambda: 1 / 0)
    model.nodes.changed.set()
    await until(lambda: model.service.engine.health().state == "failed")
    reason = "layers are not planned any more: ZeroDivisionError: division by zero"
    assert reason in model.service.engine.health().reason


async def test_model_that_does_not_fit_beside_another_leaves_it_alone(cluster: Cluster) -> None:
    machine = await cluster.join("a/1", 10)
    first, second = await cluster.load("first"), cluster.make("second", 3.0)
    with pytest.raises(ParallaxError, match="the model cannot be loaded: the model needs") as caught:
        await soon(second.start())
    assert caught.value.hint == "other models take memory: unload one first, or switch with --drain-first"
    await cluster.stop(second)
    assert (set(cluster.pool.models), machine.further) == ({"first"}, {})
    await check(first)
    await check(await cluster.load("third"))
    assert len(machine.loads) == 1, "the first model was not loaded again"


async def test_model_that_is_too_large_for_all_machines_says_so(cluster: Cluster) -> None:
    await cluster.join("a/1", 2)
    model = cluster.make("toy")
    with pytest.raises(ParallaxError, match=r"the model needs 2.8 GiB for its weights") as caught:
        await soon(model.start())
    assert caught.value.hint == "let another machine join, or choose a smaller model"


async def test_damaged_model_is_an_error_with_the_reason_of_the_node(cluster: Cluster) -> None:
    machine = await cluster.join("a/1", 10)
    first, second = await cluster.load("first"), cluster.make("second")

    def refuse(assign: Assign, progress: Progress) -> Stage:
        raise BackendFailed("the weights are damaged", "fetch them again")

    machine.open_further = refuse
    with pytest.raises(ParallaxError, match=r"node 'a/1\+1': .*the weights are damaged; fetch them again") as caught:
        await soon(second.start())
    assert caught.value.hint == "fix the reported problems, or let another machine join"
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
    assert (set(cluster.pool.models), machine.further) == ({"first"}, {})
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
    assert (set(cluster.pool.models), machine.further) == ({"first"}, {})
    await check(first)


async def test_model_that_was_never_started_can_be_stopped(cluster: Cluster) -> None:
    machine = await cluster.join("a/1", 10)
    await cluster.stop(cluster.make("toy"))
    assert (cluster.pool.models, machine.loads) == ({}, [])


@pytest.mark.parametrize("farewell", [UNLOADED, SHUTTING_DOWN])
async def test_requests_of_a_model_that_is_stopped_end_with_the_reason(cluster: Cluster, farewell: str) -> None:
    machine, gate = await cluster.join("a/1", 10), threading.Event()
    stages, steps = list[ToyStage](), list[object]()

    def open_slow(assign: Assign, progress: Progress) -> Stage:
        stage = open_toy(assign, progress)
        stages.append(stage)

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
    cluster.models.remove(model)
    stopping = asyncio.create_task(model.stop() if farewell == SHUTTING_DOWN else model.stop(farewell))
    _, finish = await soon(asking)
    gate.set()
    await soon(stopping)
    assert (finish.reason, finish.message) == ("aborted", farewell)
    await until(lambda: stages[0].closed)
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
        assert (set(cluster.pool.models), len(machine.further)) == ({loaded}, 0 if drain_first or error else 1)
        hosted = cluster.served.known[loaded].hosted
        assert isinstance(hosted, JoinedModel)
        await check(hosted)
    await soon(cluster.served.stop())


async def test_machine_in_two_pipelines_holds_its_layers_once_and_returns_all_memory(cluster: Cluster) -> None:
    cluster.leases = True
    hub = await cluster.join("hub/1", 5)
    for name in ("one/1", "two/1"):
        await cluster.join(name, 3)
    model = cluster.make("toy", policy=Hub())
    await soon(model.start())
    await until(lambda: [engine.health().state for engine in model.engines] == ["ready"] * 2)
    for _ in range(4):
        await check(model)
    assert [load.memory_fraction for load in hub.loads] == [FRACTION], "the layers are loaded once"
    uses = [model.find_use(name) for name in ("hub/1", "one/1", "two/1", "three/1")]
    assert uses == [int((2 + FRACTION * 5) * GB), *[int((1 + FRACTION * 3) * GB)] * 2, 0]
    progress = sorted((each.node, each.layers) for each in model.list_progress())
    assert progress == [("hub/1", (0, 2)), ("hub/1", (0, 2)), ("one/1", (2, 3)), ("two/1", (2, 3))]
    leases = [stage.lease for replica in model.find_plan("").replicas for stage in replica.stages if stage.lease]
    assert sorted(lease.number for lease in leases) == [0, 1]
    assert [node.name for node in cluster.pool.firsts] == ["hub/1", "one/1", "two/1"]

    assert [node.name for node in model.deployment.list_nodes()] == ["hub/1", "one/1", "two/1"]
    assert hub.session is not None
    layers = hub.session.layers
    assert layers.loaded is not None
    await cluster.stop(model)
    await until(lambda: layers.loaded is None)
    waiting = {node.name for node in model.deployment.list_waiting()}
    assert waiting == {"hub/1", "one/1", "two/1"}, "a lease is no node that waits"
    other = await cluster.load("other")
    await check(other)

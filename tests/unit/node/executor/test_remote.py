from __future__ import annotations

import asyncio
import sys
import threading
import time
from dataclasses import replace
from typing import get_args

import pytest

from parallax_core.api import BackendFailed, LayerRange, ParallaxError, Progress, Stage
from parallax_core.cluster.failure_detector import MIN_TIMEOUT_S
from parallax_core.node.channel import Channel
from parallax_core.node.executor.remote import RemoteExecutor
from parallax_core.node.membership.assignment import StageAssignment
from parallax_core.node.membership.supervisor import WorkerSupervisor
from parallax_core.node.membership.supply import NodeSupply
from parallax_core.node.pipeline.options import PipelineOptions
from parallax_core.node.worker import loaded_stage
from parallax_core.testing.fault import Fault, FaultStage
from parallax_core.testing.liar import OF_ANSWERS, Lie, LiePlan
from parallax_core.testing.node import open_toy, open_toy_layers
from parallax_core.testing.toy import Toy
from parallax_core.wire.membership import Assign
from tests.unit.node.cluster import (
    MODEL,
    TOY,
    Node,
    answer,
    check_answer,
    joined,
    make_executor,
    make_roles,
    open_registry,
    running,
    soon,
    until,
)

NAMES = ("attic", "cellar", "kitchen")


async def test_nodes_become_stages_in_the_order_they_joined() -> None:
    nodes = [Node(name) for name in NAMES]
    told: list[str] = []
    async with open_registry() as registry, joined(registry, *nodes):
        executor = make_executor(registry, progress=lambda task, *_: told.append(task))
        async with running(executor) as engine:
            await check_answer(engine)
            assert [location.node for location in engine.locations()] == list(NAMES)
            assert [(info.layers.start, info.layers.stop) for info in engine.infos] == [(0, 1), (1, 2), (2, 3)]
        assert sorted(told) == [f"stage {stage}: loading layers" for stage in range(3)]
        await until(lambda: len(registry.waiting) == len(NAMES))
    assert [[load.stage for load in node.loads] for node in nodes] == [[0], [1], [2]]


@pytest.mark.parametrize("lost", range(3))
async def test_lost_stage_is_replaced_and_the_others_keep_what_they_loaded(lost: int) -> None:
    nodes, reasons = [Node(name) for name in NAMES], list[str]()
    async with (
        open_registry() as registry,
        joined(registry, *nodes),
        running(make_executor(registry), reasons.append) as engine,
    ):
        asking = asyncio.create_task(answer(engine, (1, 2), 200))
        await until(lambda: bool(engine.stats()[0].output_tokens))
        await nodes[lost].kill()
        await until(lambda: bool(reasons))
        assert f"stage {lost} of 3, on node {NAMES[lost]!r}, is lost" in reasons[0]
        assert engine.health().state == "starting"
        spare = Node("spare")
        await spare.join(registry.address)
        tokens, finish = await asking
        assert (tokens, finish.reason) == (TOY.continuation((1, 2), 200), "length")
        assert finish.timing is not None
        assert finish.timing.recovery_s > 0
        await check_answer(engine)
        assert [location.restarts for location in engine.locations()] == [int(stage == lost) for stage in range(3)]
        assert [len(node.loads) for node in (*nodes, spare)] == [1, 1, 1, 1]
        await spare.kill()


async def test_head_that_begins_anew_finds_the_stages_where_it_left_them() -> None:
    nodes = [Node(name) for name in NAMES]
    async with (
        open_registry("inprocess://old") as registry,
        joined(registry, *nodes),
        running(make_executor(registry)) as engine,
    ):
        await check_answer(engine)
        await registry.stop()  # as when it is killed: it says nothing to anybody
        for node in (nodes[2], nodes[0], nodes[1]):
            await until(lambda node=node: bool(node.losses))  # type: ignore[misc]
        async with open_registry("inprocess://old") as heir, running(make_executor(heir)) as again:
            await check_answer(again)
            assert [len(node.loads) for node in nodes] == [1, 1, 1]


async def test_nodes_that_stay_are_not_judged_by_their_heartbeats_while_they_load(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    watched, during = set[str](), list[set[str]]()
    watch, unwatch = Channel.watch, Channel.unwatch

    def note(channel: Channel, min_timeout_s: float) -> None:
        watch(channel, min_timeout_s)
        watched.add(channel.peer)

    def forget(channel: Channel) -> None:
        unwatch(channel)
        watched.discard(channel.peer)

    def load(assign: Assign, progress: Progress) -> Stage:
        during.append(set(watched))
        return open_toy_layers(assign, progress)

    monkeypatch.setattr(Channel, "watch", note)
    monkeypatch.setattr(Channel, "unwatch", forget)
    nodes = [Node(name) for name in NAMES]
    async with open_registry() as registry, joined(registry, *nodes):
        executor = make_executor(registry)
        await soon(executor.open())
        assert watched == set(NAMES)
        for node in nodes:
            node.open = load
        stages = [replace(role, node=name) for role, name in zip(make_roles(2), ("cellar", "attic"), strict=True)]
        executor.assign(stages)
        assert not watched, "the node that goes back is not watched either"
        await soon(executor.open())
        assert during == [set(), set()]
        assert watched == {"cellar", "attic"}
        await executor.close()


async def test_nodes_that_were_taken_for_lost_before_are_watched_with_more_patience(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bounds = dict[str, float]()
    monkeypatch.setattr(Channel, "watch", lambda channel, bound_s: bounds.update({channel.peer: bound_s}))
    nodes = [Node(name) for name in NAMES[:2]]
    async with open_registry() as registry, joined(registry, *nodes):
        registry.joined[1].patience_s = 1.7
        executor = make_executor(registry, 2)
        await soon(executor.open())
        assert bounds == {NAMES[0]: MIN_TIMEOUT_S, NAMES[1]: 1.7}
        assert [node.loaded.layers for node in registry.joined if node.loaded] == list(executor.layers)
        await executor.close()


async def test_refusal_of_one_node_is_the_error_of_all() -> None:
    def refuse(assign: Assign, progress: Progress) -> Stage:
        del assign, progress
        raise ParallaxError("there is too little memory" + "!" * 5000, "close other programs")

    nodes = [Node(name) for name in NAMES]
    nodes[1].open = refuse
    async with open_registry() as registry, joined(registry, *nodes):
        executor = make_executor(registry)
        with pytest.raises(ParallaxError, match="stage 1 on node 'cellar': there is too little memory!") as caught:
            await soon(executor.open())
        assert caught.value.hint == "close other programs"
        await soon(executor.close())


async def test_backend_that_breaks_is_told_as_a_failure() -> None:
    def fail(assign: Assign, progress: Progress) -> Stage:
        raise RuntimeError("no such kernel")

    node = Node("attic")
    node.open = fail
    async with open_registry() as registry, joined(registry, node):
        executor = make_executor(registry, 1)
        with pytest.raises(ParallaxError, match="the model could not be loaded: RuntimeError: no such kernel"):
            await soon(executor.open())
        await soon(executor.close())


async def test_stages_that_do_not_fit_are_refused() -> None:
    def open_other(assign: Assign, progress: Progress) -> Stage:
        del assign, progress
        return Toy(("full",) * 4).open(LayerRange(1, 4))

    nodes = [Node("attic"), Node("cellar")]
    nodes[1].open = open_other
    async with open_registry() as registry, joined(registry, *nodes):
        executor = make_executor(registry, 2)
        with pytest.raises(ParallaxError, match="are of different models"):
            await soon(executor.open())
        await soon(executor.close())


async def test_nodes_without_the_backend_are_left_alone() -> None:
    nodes = [Node("attic", backends=("other",)), Node("cellar")]
    async with (
        open_registry() as registry,
        joined(registry, *nodes),
        running(make_executor(registry, 1, backend="toy")) as engine,
    ):
        assert [location.node for location in engine.locations()] == ["cellar"]
        assert [joined.name for joined in registry.waiting] == ["attic"]


@pytest.mark.parametrize("lie", [lie for lie in get_args(Lie) if lie != "flood"])
@pytest.mark.parametrize("after", [0, 5])
async def test_stage_that_lies_is_found_out(lie: Lie, after: int) -> None:
    liar = 2 if lie in OF_ANSWERS else 1
    nodes = [Node(name, LiePlan(lie, after) if stage == liar else None) for stage, name in enumerate(NAMES)]
    reasons: list[str] = []
    async with (
        open_registry() as registry,
        joined(registry, *nodes),
        running(make_executor(registry), reasons.append) as engine,
    ):
        nodes[liar].transport.plan = None
        await check_answer(engine, length=30)
        assert "is lost" in reasons[0]
        await check_answer(engine)


async def test_stage_that_floods_its_head_harms_nobody() -> None:
    nodes = [Node(name, LiePlan("flood", 2) if name == "cellar" else None) for name in NAMES]
    async with open_registry() as registry, joined(registry, *nodes), running(make_executor(registry)) as engine:
        await check_answer(engine)


async def test_nodes_that_come_and_go_at_once_are_replaced_in_the_end() -> None:
    nodes = [Node(name) for name in NAMES]
    async with open_registry() as registry, joined(registry, *nodes), running(make_executor(registry)) as engine:
        for round_ in range(3):
            doomed = [nodes[round_ % 3], nodes[(round_ + 1) % 3]]
            for node in doomed:
                await node.kill()
            for node in doomed:
                index = nodes.index(node)
                nodes[index] = await Node(f"{node.name}+").join(registry.address)
            await until(lambda: engine.health().state == "starting")
            await until(lambda: engine.health().state == "ready")
            await check_answer(engine)
        for node in nodes:
            await node.kill()


async def test_close_in_the_middle_of_anything_leaves_no_task() -> None:
    before = asyncio.all_tasks()
    for wait_s in (0.0, 0.001, 0.003, 0.006, 0.01, 0.02, 0.05):
        nodes = [Node(name) for name in NAMES]
        async with open_registry() as registry, joined(registry, *nodes):
            executor = make_executor(registry)
            opening = asyncio.create_task(executor.open())
            await asyncio.sleep(wait_s)
            opening.cancel()
            await asyncio.gather(opening, return_exceptions=True)
            await soon(executor.close())
    await until(lambda: asyncio.all_tasks() == before)


@pytest.mark.parametrize(
    ("code", "reason"),
    [("raise SystemExit(3)", "ended with exit code 3"), ("import os; os.kill(os.getpid(), 9)", "was ended by SIGKILL")],
)
async def test_process_that_ends_before_it_joins_is_named(code: str, reason: str) -> None:
    async with open_registry() as registry:
        roles = [StageAssignment(stage=0, layers=None, model=MODEL, node="worker/0/0")]
        executor = RemoteExecutor(
            roles, NodeSupply(registry, WorkerSupervisor(lambda _: [sys.executable, "-S", "-c", code]))
        )
        with pytest.raises(BackendFailed, match=f"stage 0 of 1 on node 'worker/0/0': its process {reason}"):
            await soon(executor.open())
        await soon(executor.close())


async def test_first_process_that_fails_ends_the_others() -> None:
    async with open_registry() as registry:
        roles = make_roles(3)
        named = [
            StageAssignment(stage=role.stage, layers=role.layers, model=MODEL, node=f"w/{role.stage}") for role in roles
        ]

        def command(node: str) -> list[str]:
            code = "raise SystemExit(3)" if node == "w/1" else "import sys; sys.stdin.read()"
            return [sys.executable, "-S", "-c", code]

        supervisor = WorkerSupervisor(command)
        executor = RemoteExecutor(named, NodeSupply(registry, supervisor))
        with pytest.raises(BackendFailed, match="stage 1 of 3"):
            await soon(executor.open())
        pids = supervisor.pids
        await soon(executor.close())
        assert len(pids) >= 2
        assert supervisor.pids == ()


class Crib(WorkerSupervisor):
    """Starts nodes of this process in place of processes; those that are gone may yet be alive."""

    def __init__(self, address: str, nodes: list[Node], end: str | None) -> None:
        super().__init__(lambda _: [])
        self.address, self.nodes, self.ended = address, nodes, end
        self.started: list[Node] = []
        self.num_killed = 0

    async def kill(self, node: str) -> None:
        self.num_killed += 1
        await self.started[-1].kill()

    async def restart(self, node: str) -> None:
        self.started.append(await self.nodes.pop(0).join(self.address))

    async def wait_end(self, node: str) -> str:
        await asyncio.Event().wait()
        return ""

    async def explain(self, node: str) -> str | None:
        return self.ended

    async def end(self, node: str) -> None:
        for each in self.started:
            await each.kill()


class Mute(Node):
    """A node that is not heard of again once it is to load."""

    def open_stage(self, assign: Assign, progress: Progress) -> Stage:
        asyncio.run_coroutine_threadsafe(self.transport.stop(), self.loop)
        return super().open_stage(assign, progress)

    async def join(self, address: str, head: str = "head") -> Node:
        self.loop = asyncio.get_running_loop()
        return await super().join(address, head)


@pytest.mark.parametrize(("num_mute", "end", "works"), [(1, None, True), (3, None, False), (1, "it crashed", False)])
async def test_process_that_was_silent_while_it_loaded_is_started_again(
    num_mute: int, end: str | None, works: bool
) -> None:
    nodes: list[Node] = [*(Mute("w") for _ in range(num_mute)), Node("w")]
    async with open_registry() as registry:
        crib = Crib(registry.address, nodes, end)
        executor = RemoteExecutor(
            [StageAssignment(stage=0, layers=None, model=MODEL, node="w")], NodeSupply(registry, crib)
        )
        if works:
            [info] = await soon(executor.open())
            assert info.num_layers == len(TOY.layers)
        else:
            with pytest.raises(BackendFailed, match=end or "stage 0 of 1 on node 'w'"):
                await soon(executor.open())
        assert len(crib.started) == num_mute + works
        await soon(executor.close())


def refuse(assign: Assign, progress: Progress) -> Stage:
    del assign, progress
    raise ParallaxError("the weights take 16 GB, and 3 GB are free", "close other programs")


async def test_process_that_refuses_its_stage_is_replaced_by_a_fresh_one() -> None:
    nodes = [Node("w"), Node("w")]
    nodes[0].open = refuse
    async with open_registry() as registry:
        crib = Crib(registry.address, [*nodes], None)
        executor = RemoteExecutor(
            [StageAssignment(stage=0, layers=None, model=MODEL, node="w")], NodeSupply(registry, crib)
        )
        with pytest.raises(ParallaxError, match="stage 0 on node 'w': the weights take 16 GB, and 3 GB are free"):
            await soon(executor.open())
        assert (crib.num_killed, [len(node.loads) for node in nodes]) == (1, [1, 0])
        await soon(executor.open())
        assert (crib.num_killed, [len(node.loads) for node in nodes]) == (1, [1, 1])
        await soon(executor.close())


@pytest.mark.parametrize("is_ours", [True, False])
async def test_node_that_says_nothing_of_its_loading_is_given_up(*, is_ours: bool) -> None:
    go = threading.Event()

    def hang(assign: Assign, progress: Progress) -> Stage:
        progress("loading layers", 1, 7)
        go.wait()
        return open_toy(assign, progress)

    nodes = [Node("w"), Node("w" if is_ours else "spare")]
    nodes[0].open = hang
    async with open_registry() as registry, joined(registry, *nodes[: 2 * (not is_ours)]):
        crib = Crib(registry.address, [*nodes], None) if is_ours else None
        role = StageAssignment(stage=0, layers=None, model=MODEL, node="w" if is_ours else "", load_timeout_s=0.3)
        executor = RemoteExecutor([role], NodeSupply(registry, crib))
        with pytest.raises(
            BackendFailed, match=r"stage 0 on node 'w': it has reported no loading progress for 0\.3 s"
        ) as caught:
            await soon(executor.open())
        assert "load_timeout" in caught.value.hint
        await soon(executor.open())
        assert (crib is None or crib.num_killed == 1, len(nodes[1].loads)) == (True, 1)
        go.set()
        await soon(executor.close())


async def test_slow_load_that_tells_of_its_progress_is_waited_for() -> None:
    def load(assign: Assign, progress: Progress) -> Stage:
        for done in range(10):
            progress("loading layers", done, 10)
            time.sleep(0.05)  # it is to take longer than it may be silent
        return open_toy(assign, progress)

    node = Node("attic")
    node.open = load
    async with open_registry() as registry, joined(registry, node):
        [role] = make_roles(1)
        executor = RemoteExecutor([replace(role, load_timeout_s=0.4)], NodeSupply(registry))
        await soon(executor.open())
        await soon(executor.close())


@pytest.mark.parametrize("is_ours", [True, False])
async def test_node_whose_step_hangs_is_found_out_and_replaced(
    monkeypatch: pytest.MonkeyPatch, *, is_ours: bool
) -> None:
    monkeypatch.setattr(loaded_stage, "RESET_S", 0.1)
    hanging: list[FaultStage] = []

    def open_stage(assign: Assign, progress: Progress) -> Stage:
        hanging.append(FaultStage(open_toy(assign, progress), Fault("hang", at=3)))
        return hanging[-1]

    nodes, reasons = [Node("w"), Node("w" if is_ours else "spare")], list[str]()
    nodes[0].open = open_stage
    async with open_registry() as registry, joined(registry, *nodes[: 2 * (not is_ours)]):
        crib = Crib(registry.address, [*nodes], None) if is_ours else None
        role = StageAssignment(stage=0, layers=None, model=MODEL, node="w" if is_ours else "", heartbeat_s=0.02)
        plan = PipelineOptions(step_timeout_s=0.2)
        async with running(RemoteExecutor([role], NodeSupply(registry, crib)), reasons.append, plan) as engine:
            await check_answer(engine, length=30)
            assert "stage 0 of 1, on node 'w', is lost: it has computed step 4 for 0." in reasons[0]
            await until(lambda: engine.health().state == "ready")
            assert engine.locations()[0].node == nodes[1].name
            await check_answer(engine)
            assert crib is None or crib.num_killed == 1
            if crib is None:
                await until(lambda: bool(nodes[0].ends))
        hanging[0].release()

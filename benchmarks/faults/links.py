"""A scenario of hundreds of nodes that join a coordinator, report to it, leave it and die."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import os
import random
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, ExitStack, suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks.faults.run import Figures, Run, private_folder
from benchmarks.faults.strangers import pinned
from parallax_cluster.layer_plan import LayerPlanner
from parallax_cluster.node.coordinator.coordinator import Coordinator
from parallax_cluster.node.coordinator.node_pool import NodePool
from parallax_cluster.node.coordinator.pipelines import PlannedPipeline
from parallax_cluster.node.coordinator.planned import PlannedExecutor, Planning
from parallax_cluster.node.coordinator.profiles import NodeProfiles
from parallax_cluster.node.coordinator.rooms import MachineRooms, ModelProfiles
from parallax_cluster.node.profile.reporter import NodeReporter
from parallax_cluster.placement.policy import SearchPlacement
from parallax_cluster.server.events import ClusterFeed
from parallax_cluster.wire.profile import DeviceReport, LinkReport, NodeReport
from parallax_core.api import ParallaxError, TransportPlan, keys_folder
from parallax_core.base.ids import name_machine
from parallax_core.builtin.routing import LeastPendingTokens
from parallax_core.contracts.placement import ServingGoal
from parallax_core.node.executor.remote import RemoteExecutor
from parallax_core.node.membership.registry import NodeRegistry
from parallax_core.node.membership.supply import NodeSupply
from parallax_core.node.pipeline.engine import PipelineEngine
from parallax_core.node.pipeline.options import PipelineOptions
from parallax_core.node.routing.router import Router
from parallax_core.node.status import describe_node
from parallax_core.node.worker.session import WorkerSession
from parallax_core.server.served_models import ServedModels
from parallax_core.testing.node import name_toy, open_toy
from parallax_core.wire.membership import Join
from parallax_transport_zmq.joining import ZmqJoining
from parallax_transport_zmq.keyring import Keyring
from parallax_transport_zmq.transport import ZmqTransport
from tests.support.crowd import TOY, ClientPool
from tests.support.node_services import equip, make_services
from tests.support.paced_cluster import GB, assign, make_model

GOAL_MS = 50
NODES_EACH = 50
"""Nodes in a process."""
NUM_SERVING = 6
IDLE_S, REPORT_S, LEAVE_S, AFTER_S = 10.0, 20.0, 10.0, 10.0
MOST_JOIN_S = 120.0
MODEL = name_toy(TOY)


def make_report(machine: int, count: int, memory: int) -> NodeReport:
    peers = [f"m{(machine + step) % count}/1" for step in range(1, 8)]
    return NodeReport(
        backend="torch",
        device=DeviceReport(memory=memory, total_memory=64 * GB, flops=1e13, bandwidth=1e11, name="RTX4090"),
        links=tuple(LinkReport(peer, 1e-3, 1e8) for peer in ["head", *peers]),
    )


class TimedSelector(selectors.DefaultSelector):
    """Notes how long the loop takes from one call of the selector to the next, in seconds: wall, and processor time."""

    def __init__(self) -> None:
        super().__init__()
        self.turns: list[tuple[float, float]] = []
        self._since: tuple[float, float] | None = None

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if self._since is not None:
            self.turns.append((time.perf_counter() - self._since[0], time.thread_time() - self._since[1]))
        found = super().select(timeout)
        self._since = time.perf_counter(), time.thread_time()
        return found

    def take(self) -> list[tuple[float, float]]:
        turns, self.turns = self.turns, []
        return turns


class LinkedCluster:
    """The coordinator of nodes that say themselves what they have."""

    def __init__(self) -> None:
        plan = TransportPlan(node="head", listen="tcp://127.0.0.1:0", timeout_s=5.0)
        self.registry = equip(NodeRegistry(ZmqTransport(plan), "head"))
        self.pool = NodePool(self.registry)
        nodes = self.pool.open(MODEL)
        goal = ServingGoal(prompt_tokens=20, output_tokens=30, concurrency=2)
        planner = LayerPlanner(policy=SearchPlacement(), model=make_model(), goal=goal)
        profiles = ModelProfiles(nodes, MachineRooms(self.pool), NodeProfiles("local/0", MODEL).describe, MODEL)
        self.coordinator = Coordinator(nodes, planner, profiles.describe, self._open)
        self.router = Router(self.coordinator.engines, LeastPendingTokens(), lambda: 200)

    def _open(self, rank: int, planning: Planning) -> PlannedPipeline:
        del rank
        executor = PlannedExecutor(RemoteExecutor((), NodeSupply(self.registry)), planning, assign)
        options = PipelineOptions(releases_requests=lambda: len(self.coordinator.engines) > 1)
        return PlannedPipeline(PipelineEngine(executor, lambda tokens: "x" * len(tokens), options), executor)

    async def follow_events(self) -> None:
        served = ServedModels(list_nodes=lambda: [describe_node(node) for node in self.registry.joined])
        async for _ in ClusterFeed(served).listen():
            pass


async def coordinate(selector: TimedSelector) -> None:
    """Run the coordinator; for each line of standard input, print the turns since the last, and who is there."""
    cluster = LinkedCluster()
    await cluster.registry.start()
    async with AsyncExitStack() as stack:
        stack.push_async_callback(cluster.registry.stop)
        stack.push_async_callback(cluster.router.stop)
        failed, rng = list[str](), random.Random(1)
        clients = ClientPool(cluster.router, rng, lambda end: failed.append(end.reason))
        work = (
            cluster.pool.follow(),
            cluster.coordinator.run(cluster.router),
            cluster.follow_events(),
            cluster.router.start(),
        )
        tasks = [asyncio.create_task(each) for each in work]
        print(cluster.registry.address, flush=True)
        sending: asyncio.Task[None] | None = None
        gc.freeze()
        while await asyncio.to_thread(sys.stdin.readline):
            if sending is None and cluster.router.health().state == "ready":
                sending = asyncio.create_task(clients.send_requests())
            answers = sum(bool(each.ended) for each in clients.sent)
            joined = cluster.registry.joined
            found = {
                "joined": len(joined),
                "reported": sum(node.report is not None for node in joined),
                "answers": answers,
                "failed": len(failed),
                "turns": selector.take(),
            }
            print(json.dumps(found), flush=True)
        for task in (*tasks, *([sending] if sending else [])):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class LightNode:
    """A node that shares its process with others."""

    def __init__(self, number: int, count: int) -> None:
        self.name = f"m{number}/1"
        self._number, self._count = number, count
        self._num_reports = 0
        self.session: WorkerSession | None = None

    def report(self) -> NodeReport:
        self._num_reports += 1
        room = 2 * GB if self._number < NUM_SERVING else GB // 4
        return make_report(self._number, self._count, room + self._num_reports % 2 * GB // 8)

    async def run(self, address: str) -> None:
        place = Path(os.environ["PARALLAX_HOME"]).parent
        enter(place, "head")
        heads = {"head": Keyring(keys_folder()).ensure_pair("head").public}
        enter(place, name_machine(self.name))
        plan = TransportPlan(node=self.name, listen="tcp://127.0.0.1:0", timeout_s=15.0, heads=heads)
        transport = ZmqTransport(plan)
        await transport.start()
        self.session = WorkerSession(
            make_services(transport, self.name, reporter=NodeReporter(self.report)), self.name, open_toy
        )
        join = Join(transport.address, ("toy",), f"host-{self._number}", os.getpid())
        try:
            while not self.session.is_leaving:
                with suppress(ParallaxError):
                    await self.session.serve(address, "head", join)
                await asyncio.sleep(random.uniform(1.0, 3.0))
        finally:
            await self.session.close()
            await transport.stop()


async def run_nodes(first: int, stop: int, count: int, address: str) -> None:
    nodes = [LightNode(number, count) for number in range(first, stop)]
    tasks = [asyncio.create_task(node.run(address)) for node in nodes]
    for node in reversed(nodes):
        if not await asyncio.to_thread(sys.stdin.readline):  # the parent is gone
            break
        if node.session is not None:
            node.session.leave()
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


class Processes:
    """The process of the coordinator, and those of the nodes."""

    def __init__(self, count: int, stack: ExitStack) -> None:
        self._count = count
        self._coordinator = self._start(stack, 0, "coordinate")
        self.address = _read(self._coordinator)
        bounds = [0, NUM_SERVING, *range(NUM_SERVING + NODES_EACH, count, NODES_EACH), count]
        self.nodes = [
            self._start(stack, 1, str(first), str(stop), str(count), self.address) for first, stop in pairwise(bounds)
        ]

    @staticmethod
    def _start(stack: ExitStack, core: int, *words: str) -> subprocess.Popen[str]:
        command = pinned((sys.executable, "-m", "benchmarks.faults.links", *words), core)
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        stack.callback(process.wait)
        stack.callback(process.kill)
        return process

    def ask(self) -> dict[str, Any]:
        _tell(self._coordinator)
        found: dict[str, Any] = json.loads(_read(self._coordinator))
        return found

    def leave(self, number: int) -> None:
        _tell(self.nodes[1 + number % (len(self.nodes) - 1)])

    def kill(self) -> None:
        for process in self.nodes[1:]:
            process.send_signal(signal.SIGKILL)


def _tell(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def _read(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def summarize(phase: str, seconds: float, state: dict[str, Any]) -> dict[str, Any]:
    turns = sorted(turn for turn, _ in state["turns"])
    costs = sorted(cost for _, cost in state["turns"])
    found = {
        "phase": phase,
        "seconds": round(seconds, 1),
        **{name: state[name] for name in ("joined", "reported", "answers", "failed")},
        "turns": len(turns),
        "ms": _find_marks(turns),
        "cpu_ms": _find_marks(costs),
        "busy": round(sum(costs) / seconds, 3),
    }
    print(json.dumps(found), file=sys.stderr, flush=True)
    return found


def _find_marks(ordered: Sequence[float]) -> dict[str, float]:
    marks = {"p50": ordered[len(ordered) // 2], "p99": ordered[len(ordered) * 99 // 100], "longest": ordered[-1]}
    return {name: round(1000 * each, 2) for name, each in marks.items()}


def measure(count: int) -> list[Figures]:
    with ExitStack() as stack:
        processes = Processes(count, stack)
        found = []

        def during(phase: str, seconds: float, act: Callable[[], None] = lambda: None) -> None:
            begun, turns = time.monotonic(), []
            while time.monotonic() < begun + seconds:
                act()
                time.sleep(0.2)
                state = processes.ask()
                turns += state["turns"]
                print(f"{phase}: {state['joined']} of {count} joined, load {os.getloadavg()[0]:.1f}", file=sys.stderr)
                if phase == "join" and state["reported"] == count and state["answers"]:
                    break
            found.append(summarize(phase, time.monotonic() - begun, {**state, "turns": turns}))

        def leave() -> None:
            if (number := next(leaving, None)) is not None:
                processes.leave(number)

        leaving = iter(range(count // 10))
        during("join", MOST_JOIN_S)
        during("idle", IDLE_S)
        during("report", REPORT_S)
        during("leave", LEAVE_S, leave)
        processes.kill()
        during("killed", AFTER_S)
    return found


def prepare_homes(folder: Path, count: int) -> None:
    enter(folder, "head")
    ZmqJoining().prepare("head")
    known = Keyring(keys_folder())
    for number in range(count):
        enter(folder, f"m{number}")
        pair = Keyring(keys_folder()).ensure_pair("default")
        known.allow(pair.public, f"m{number}", "worker")


def enter(folder: Path, machine: str) -> None:
    os.environ["PARALLAX_HOME"] = str(folder / machine)


def main() -> None:
    """Run the coordinator, or some nodes."""
    match sys.argv[1:]:
        case ["coordinate"]:
            logging.disable(logging.WARNING)
            selector = TimedSelector()
            with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(selector)) as runner:
                runner.run(coordinate(selector))
        case [first, stop, count, address]:
            asyncio.run(run_nodes(int(first), int(stop), int(count), address))


def links(run: Run) -> None:
    """Have nodes join a coordinator, report to it, leave it and die, and measure the turns of its event loop.

    The coordinator is a process of its own. Each node has a home, a key and a link over encrypted ZeroMQ, with the
    session of a worker, and shares a process with others on the second core. Six nodes serve a toy to a client; the
    others have no room for a layer, and wait. Somebody follows the events of the cluster. In turn, all nodes join at
    once, are idle, report other figures each ten seconds, leave one after the other (a tenth of them), and are killed
    together (all but those that serve).

    A turn is the time between two calls of the selector. ``cpu_ms`` is the processor time of the thread of the loop in
    the longest turns, which other processes hardly change; ``ms`` is the time that passes, which needs an idle machine.
    """
    count = run.times(300)
    with private_folder() as folder:
        prepare_homes(folder, count)
        enter(folder, "head")
        run.part(f"{count} nodes", lambda: {"goal_ms": GOAL_MS, "phases": measure(count)})


if __name__ == "__main__":
    main()

"""A scenario of toy nodes under a coordinator, to which things happen at random."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections import Counter
from contextlib import suppress

from benchmarks.faults.run import Figures, Run, private_folder, say, spread
from benchmarks.processes import is_running
from tests.support.crowd import ClientPool, finish_clients
from tests.support.paced_cluster import GB, PacedCluster, PacedFleet, running

STALL_S = 3.0
CLIENTS = 6
FIRST, MOST = 4, 8
"""The nodes at the beginning, and the most at a time."""
LEAST_ROOM = 5
"""The layers for which the nodes that stay must have room: more than the model has, since a node may stand still."""
KINDS = ("join", "leave", "kill", "stall", "slow")
CALM_S = 10.0
"""Seconds after the last thing that happens, in which slow nodes can be found."""


def draw_node(rng: random.Random) -> tuple[float, float]:
    return rng.choice((1.5, 2.5, 4.0)), 10 ** rng.uniform(12, 13.3)


def can_spare(fleet: PacedFleet, node: str) -> bool:
    rooms = (fleet.profiles[each].device.memory for each in fleet.pids if each != node)
    return sum(room // GB for room in rooms) >= LEAST_ROOM


async def strike(fleet: PacedFleet, kind: str, rng: random.Random) -> str:
    fleet.pids = {node: pid for node, pid in fleet.pids.items() if is_running(pid)}  # some were taken for dead
    if kind == "slow" and (fast := sorted(set(fleet.pids) - fleet.slow)):
        fleet.slow_down(rng.choice(fast))
        return kind
    spare = [node for node in fleet.pids if can_spare(fleet, node)]
    if kind in {"join", "slow"} or not spare:
        if len(fleet.pids) == MOST:
            return "nothing"
        await fleet.join(*draw_node(rng))
        return "join"
    node = rng.choice(spare)
    pid = fleet.pids.pop(node)  # the toy's process ends also when it has lost its head
    if kind == "stall":
        os.kill(pid, signal.SIGSTOP)
        await asyncio.sleep(STALL_S)
    with suppress(ProcessLookupError):
        os.kill(pid, {"leave": signal.SIGTERM, "kill": signal.SIGKILL, "stall": signal.SIGCONT}[kind])
    return kind


async def note_moves(cluster: PacedCluster, reasons: list[str]) -> None:
    latest = ""
    while True:
        reason = cluster.coordinator.move.reason if cluster.coordinator.move else ""
        reasons += [reason] if reason and reason != latest else []
        latest = reason
        await asyncio.sleep(0.02)


async def measure(times: int, rng: random.Random) -> Figures:
    struck, reasons = Counter[str](), list[str]()
    with private_folder() as private:
        cluster = PacedCluster(private, CLIENTS)
        pool = ClientPool(cluster.router, rng)
        async with running(cluster, [draw_node(rng) for _ in range(FIRST)]):
            clients = [asyncio.create_task(pool.send_requests()) for _ in range(CLIENTS)]
            watching = asyncio.create_task(note_moves(cluster, reasons))
            for number in range(times):
                await asyncio.sleep(rng.uniform(0.0, 2.0))
                struck[kind := await strike(cluster.fleet, rng.choice(KINDS), rng)] += 1
                say(number, kind, len(cluster.fleet.pids), len(pool.sent))
            await asyncio.sleep(CALM_S)
            converged_s = await cluster.converge()
            watching.cancel()
            hung = await finish_clients(clients, pool)
        await asyncio.sleep(1.0)
        left = sum(map(is_running, cluster.fleet.all_pids))
    wrong = sum(not each.is_right or each.reason != "length" for each in pool.sent)
    return {
        "struck": dict(struck),
        "moves": {"all": len(reasons), "speed": sum("times as long" in reason for reason in reasons)},
        "requests": len(pool.sent),
        "refused": pool.num_refused,
        "converged_s": converged_s,
        "pause_s": spread(each.pause_s for each in pool.sent),
        "faults": {"wrong": wrong, "hung": hung, "not converged": converged_s is None, "processes left": left},
    }


def nodes(run: Run) -> None:
    """Have sixty things happen to nodes: they join, leave, die, stand still, or become four times as slow."""
    run.part("nodes", lambda: asyncio.run(measure(run.times(60), random.Random(run.seed))))

"""Scenarios of engines that schedule themselves, whose processes are killed."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from pathlib import Path

from benchmarks.faults.fleet import TIMEOUT_S, write
from benchmarks.faults.readers import Readers, make_questions
from benchmarks.faults.run import Figures, Run, say, spread, wait_until
from benchmarks.faults.stages import judge
from benchmarks.processes import is_running, list_processes
from benchmarks.servers import PATIENCE_S, cluster, serving
from parallax_core.builtin.routing import LeastPendingTokens
from parallax_core.node.routing.router import Router
from parallax_core.testing.token_engine import TextEngine
from tests.support.crowd import TOY, ClientPool, finish_clients, now
from tests.support.engine_workers import ProcessEngine

STOP_EVERY = 10


async def measure_toy(times: int, rng: random.Random) -> Figures:
    linked = ProcessEngine(TOY, TIMEOUT_S)
    supervisor, engine = linked.supervisor, TextEngine(linked, write)
    router = Router([engine], LeastPendingTokens(), lambda: engine.max_length)
    await router.start()
    pool, seconds, pids = ClientPool(router, rng), list[float](), set[int]()
    clients = [asyncio.create_task(pool.send_requests()) for _ in range(16)]
    for number in range(times):
        await asyncio.sleep(rng.random() / 2)
        begun = now()
        pids |= set(supervisor.pids)
        os.kill(supervisor.pids[0], signal.SIGKILL if (number + 1) % STOP_EVERY else signal.SIGSTOP)
        async with asyncio.timeout(10 * TIMEOUT_S):
            while engine.describe()[0].num_losses <= number:
                await asyncio.sleep(0.01)
        await pool.wait_answer()
        seconds.append(now() - begun)
    hung = await finish_clients(clients, pool)
    pids |= set(supervisor.pids)
    await router.stop()
    found = judge(pool.sent, [], is_exact=True)
    left = {"hung": hung, "processes left": sum(map(is_running, pids))}
    return found | {"next_answer_s": spread(seconds), "faults": found["faults"] | left}


def engine(run: Run) -> None:
    """Kill the process of a toy engine, or stop it every tenth time: requests end with all tokens, or an error."""
    rng = random.Random(run.seed)
    run.part("kills", lambda: asyncio.run(measure_toy(run.times(100), rng)))


def kill_one(url: str, readers: Readers, rng: random.Random) -> dict[str, float]:
    """Kill a process of an engine while it runs requests; return what became of it and of the others."""

    def look(name: str) -> int:
        return int(cluster(url)["replicas"][0][name])

    wait_until(lambda: look("running") >= 1, PATIENCE_S, "nothing runs")
    losses = look("losses")
    processes = list(list_processes(cluster(url)["replicas"][0]["stages"][0]["pid"]))
    tracker = b"multiprocessing.resource_tracker"  # an engine goes on without it
    victim = rng.choice([pid for pid in processes if tracker not in Path(f"/proc/{pid}/cmdline").read_bytes()])
    begun = time.monotonic()
    os.kill(victim, signal.SIGKILL)
    is_noticed = wait_until(lambda: look("losses") > losses, PATIENCE_S)
    is_back = wait_until(lambda: readers.ask_again() != "error", PATIENCE_S)
    took = time.monotonic() - begun
    wait_until(lambda: not any(map(is_running, processes)), 20.0)
    found = {"unnoticed": not is_noticed, "not back": not is_back, "orphans": sum(map(is_running, processes))}
    say(processes.index(victim), found, round(took, 1))
    return found | {"seconds": took}


def measure_real(run: Run) -> Figures:
    words = [word for python in run.options.python for word in ("--python", python)]
    words += [word for option in run.options.option for word in ("--backend-option", option)]
    common = ("--dtype", "float32", "--backend", run.options.backend, "--set", "memory_fraction=0.1")
    with serving(str(run.model), *common, *words) as (url, model):
        readers = Readers(url, make_questions(model, 200, 4), 4)
        readers.learn()
        readers.start()
        kills = [kill_one(url, readers, random.Random(run.seed + number)) for number in range(run.times(5))]
        found = readers.finish()
    faults = {name: sum(each[name] for each in kills) for name in ("unnoticed", "not back", "orphans")}
    faults |= {"hung": found["hung"], "no answer": not found["whole"] + found["different"]}
    return found | {"next_answer_s": spread(each["seconds"] for each in kills), "faults": faults}


def real_engine(run: Run) -> None:
    """Kill a process of a real engine under load: requests end, the engine comes back, and no process is left."""
    run.part(run.options.backend, lambda: measure_real(run))

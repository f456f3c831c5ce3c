"""Scenarios of worker processes: killed, stopped, sabotaged, cut off, or only slow."""

from __future__ import annotations

import asyncio
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any, cast, get_args

from benchmarks.faults.fleet import FAILING, PATIENCE_S, TIMEOUT_S, Fault, Fleet, Formation, running
from benchmarks.faults.run import Figures, Run, longest_pauses, private_folder, say, spread
from benchmarks.faults.sabotage import Kind, order, read_rows
from benchmarks.processes import read_resident
from benchmarks.record import count_cores
from parallax_transport_zmq.keyring import Keyring
from tests.support.crowd import TOY, ClientPool, SentRequest, draw_questions, finish_clients, now
from tests.support.process_pipeline import Pipeline, serving
from tests.support.zmq_nodes import Wire, stretched

REPLICATED = Formation(name="2 stages, 2 replicas, spare each", sizes=(2, 3), replicas=2, spares=2)
FORMATIONS = (
    Formation(name="1 stage", sizes=(5,)),
    Formation(name="2 stages", sizes=(2, 3)),
    Formation(name="3 stages", sizes=(1, 2, 2)),
    Formation(name="5 stages", sizes=(1, 1, 1, 1, 1)),
    Formation(name="1 stage, spare", sizes=(5,), spares=1),
    Formation(name="2 stages, spare each", sizes=(2, 3), spares=2),
    Formation(name="3 stages, spare each", sizes=(1, 2, 2), spares=3),
    Formation(name="2 stages, 2 replicas", sizes=(2, 3), replicas=2),
    Formation(name="1 stage, 3 replicas", sizes=(5,), replicas=3),
    REPLICATED,
    Formation(name="mlx, 2 stages", sizes=(12, 18), backend="mlx"),
    Formation(name="mlx, 2 stages, spare each", sizes=(12, 18), backend="mlx", spares=2),
    Formation(name="torch, 2 stages", sizes=(12, 18), backend="torch"),
    Formation(name="torch, 2 stages, spare each", sizes=(12, 18), backend="torch", spares=2),
)
STOP_EVERY = 3
NOTICE_S, HANG_NOTICE_S = 3.0, 2.0
"""Seconds within which a fault must be noticed, and after the step timeout, a step that hangs."""
HANGING = frozenset({"event", "kernel"})
KINDS = ("SIGKILL", "SIGSTOP", *get_args(Kind))
SABOTAGED = (
    (Formation(name="toy", sizes=(1, 1, 1), pools=TOY.layers, step_timeout_s=2.0), 200, 16),
    (Formation(name="alone", sizes=(3,), pools=TOY.layers, step_timeout_s=2.0), 50, 16),
    (Formation(name="model", sizes=(10, 10, 10), backend="mlx", step_timeout_s=5.0), 20, 4),
)
"""Formations with the number of faults and of clients."""
EVERY_S, SAMPLE_S, PARTS, MOST_GROWTH = 15.0, 5.0, 4, 1.1


@contextmanager
def busy_cores(num_processes: int) -> Iterator[None]:
    spinning = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(num_processes)]
    try:
        yield
    finally:
        for process in spinning:
            process.kill()
            process.wait()


def make_pool(fleet: Fleet, rng: random.Random) -> ClientPool:
    """Return clients of a fleet that read streams, greedy or sampled with a seed; what is right is learned first."""
    questions = draw_questions(rng, 180 if fleet.formation.backend == "toy" else 60)
    return ClientPool(fleet.router, rng, lambda end: fleet.note(end.message, is_loss=False), questions)


def judge(sent: Sequence[SentRequest], faults: Sequence[Fault], *, is_exact: bool) -> Figures:
    """Return how requests ended and how long they waited; those of a real model may differ at near-ties."""
    pauses = longest_pauses([fault.noticed for fault in faults], [gap for each in sent for gap in each.gaps])
    kinds = sorted({fault.kind for fault in faults})
    different = sum(not each.is_right for each in sent)
    return {
        "streams": len(sent),
        "different": different,
        "ends": dict(Counter(each.reason or "none" for each in sent)),
        "errors": sorted({each.message for each in sent if each.message}),
        "pause_s": {k: spread(p for p, f in zip(pauses, faults, strict=True) if f.kind == k) for k in kinds},
        "noticed_s": {kind: spread(f.noticed - f.at for f in faults if f.kind == kind) for kind in kinds},
        "ready_s": {kind: spread(f.ready - f.at for f in faults if f.kind == kind) for kind in kinds},
        "faults": {
            "without an end": sum(not each.reason for each in sent),
            "wrong tokens": different if is_exact else 0,
        },
    }


async def hit(fleet: Fleet, rng: random.Random) -> None:
    """Kill the worker of a stage, or stop it every third time, and wait until all is as before."""
    engine = rng.choice(fleet.engines)
    number = signal.SIGSTOP if len(fleet.faults) % STOP_EVERY == STOP_EVERY - 1 else signal.SIGKILL
    fault = Fault(number.name, rng.randrange(len(fleet.formation.sizes)), now())
    fleet.faults.append(fault)
    fleet.signal(engine, fault.stage, number)
    await fleet.wait_noticed(fault)


async def end_fleet(fleet: Fleet, pool: ClientPool, clients: Sequence[asyncio.Task[None]]) -> dict[str, int]:
    return {"hung": await finish_clients(clients, pool), "pages used": await fleet.count_used()}


async def measure_kills(formation: Formation, folder: Path | None, kills: int, private: Path) -> Figures:
    fleet, rng = Fleet(formation, folder, private), random.Random(formation.name)
    pool = make_pool(fleet, rng)
    async with running(fleet):
        await pool.learn()
        clients = [asyncio.create_task(pool.send_requests()) for _ in range(4)]
        for number in range(kills):
            await pool.wait_answer()
            await asyncio.sleep(rng.uniform(0, 0.5))
            await hit(fleet, rng)
            say(formation.name, number, fleet.faults[-1], len(pool.sent))
        await pool.wait_answer()
        left = await end_fleet(fleet, pool, clients)
    found = judge(pool.sent, fleet.faults, is_exact=formation.backend == "toy")
    lost = sum(each.reason == "error" for each in pool.sent)
    return found | {"faults": found["faults"] | left | {"lost": lost, "processes left": fleet.count_left()}}


def kills(run: Run) -> None:
    """Kill (SIGKILL), or every third time stop (SIGSTOP), the worker of a stage while four clients read streams."""
    for each in FORMATIONS:
        folder = None if each.backend == "toy" else run.model
        times = run.times(100 if folder is None else 25)
        with private_folder() as private:
            run.part(each.name, lambda: asyncio.run(measure_kills(each, folder, times, private)))


async def measure_soak(run: Run, name: str, seconds: float, private: Path) -> Figures:
    fleet, rng = Fleet(REPLICATED, None, private), random.Random(run.seed)
    pool = make_pool(fleet, rng)
    async with running(fleet):
        await pool.learn()
        begun, memory, due = now(), [read_resident(os.getpid())], EVERY_S
        clients = [asyncio.create_task(pool.send_requests()) for _ in range(16)]
        while (left_s := begun + seconds - now()) > 0:
            await asyncio.sleep(min(left_s, SAMPLE_S))
            memory.append(read_resident(os.getpid()))
            if name != "undisturbed" and now() - begun > due:
                due += EVERY_S
                await hit(fleet, rng)
                say(fleet.faults[-1], len(pool.sent))
        took, tokens = now() - begun, sum(len(each.tokens) for each in pool.sent)
        left = await end_fleet(fleet, pool, clients)
    found = judge(pool.sent, fleet.faults, is_exact=True)
    lost = sum(each.reason == "error" for each in pool.sent)
    found["faults"] |= left | {"lost": lost, "processes left": fleet.count_left()}
    return found | {"tokens_per_s": round(tokens / took, 1), "memory_mb": [round(each / 1e6, 1) for each in memory]}


def soak(run: Run) -> None:
    """Kill a worker every 15 s at full load, in four parts, after one without faults; memory must be flat."""
    seconds = run.seconds(1200.0)
    for number in range(PARTS + 1):
        name = f"part {number}" if number else "undisturbed"
        length = seconds / PARTS if number else seconds / 10
        with private_folder() as private:
            run.part(name, partial(lambda *words: asyncio.run(measure_soak(run, *words)), name, length, private))
    parts = [run.report[name] for name in ("undisturbed", *(f"part {number + 1}" for number in range(PARTS)))]
    speeds, memories = ([part[key] for part in parts] for key in ("tokens_per_s", "memory_mb"))
    growth = median(memories[-1]) / median(memories[0])
    run.part("summary", lambda: {
        "throughput_ratio": round(sum(speeds[1:]) / PARTS / speeds[0], 3),
        "memory_ratio": round(growth, 3),
        "faults": {"memory grew": growth > MOST_GROWTH},
    })  # fmt: skip


async def strike(fleet: Fleet, kind: str, rng: random.Random) -> None:
    [engine], stage = fleet.engines, rng.randrange(len(fleet.formation.sizes))
    first = sum(fleet.formation.sizes[:stage])
    fault = Fault(kind, stage, now(), ordered=now())
    if kind in signal.Signals.__members__:
        fleet.faults.append(fault)
        fleet.signal(engine, stage, signal.Signals[kind])
    elif kind == "refuse":  # its process is killed, and those that replace it fail to open the stage
        fleet.faults.append(fault)
        for trial in range(rng.randint(1, 2)):
            path = order(fleet.private, first, "refuse")
            if not trial:
                fleet.signal(engine, stage, signal.SIGKILL)
            await wait_gone(fleet, path)
    else:
        path = order(fleet.private, first, cast("Kind", kind))
        fleet.faults.append(fault)
        await wait_gone(fleet, path)
        fault.at, fault.rows = now(), read_rows(path)
    await fleet.wait_noticed(fault)


async def wait_gone(fleet: Fleet, path: Path) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while path.exists():
            fleet.pids.update(fleet.supervisor.pids)
            await asyncio.sleep(0.002)


def count_wrong_ends(sent: Sequence[SentRequest], faults: Sequence[Fault]) -> int:
    """Return the number of faults after which other requests than those of a failing step ended with an error."""
    ends = sorted(each.ended for each in sent if each.reason == "error")
    starts = [*(fault.ordered for fault in faults), float("inf")]
    ended = [sum(begin <= end < stop for end in ends) for begin, stop in pairwise(starts)]
    due = [(1 if fault.kind == "nan" else fault.rows) if fault.kind in FAILING else 0 for fault in faults]
    return sum(one != other for one, other in zip(due, ended, strict=True))


async def measure_sabotage(formation: Formation, run: Run, size: tuple[int, int], private: Path) -> Figures:
    times, num_clients = size
    is_toy, rng, num_lost = formation.backend == "toy", random.Random(run.seed), 0
    fleet = Fleet(formation, None if is_toy else run.model, private)
    pool, kinds = make_pool(fleet, rng), list[str]()
    async with running(fleet):
        await pool.learn()
        clients = [asyncio.create_task(pool.send_requests()) for _ in range(num_clients)]
        for number in range(times):
            await pool.wait_answer()
            await asyncio.sleep(rng.uniform(0.05, 0.6) if is_toy else rng.uniform(0.5, 3.0))
            kinds = kinds or rng.sample(given := run.options.kinds or KINDS, len(given))
            kind, pids = kinds.pop(), set(fleet.supervisor.pids)
            await strike(fleet, kind, rng)
            num_lost += kind in FAILING and pids != set(fleet.supervisor.pids)
            say(formation.name, number, fleet.faults[-1], len(pool.sent))
        left = await end_fleet(fleet, pool, clients)
        pool.is_over = False
        last = await pool.send()  # every stage reports its free pages, which must be what the head believes
        assert last is not None
        assert last.is_right
        left["pages used"] += await fleet.count_used()
    found = judge(pool.sent, fleet.faults, is_exact=True)
    limits = {kind: (formation.step_timeout_s or 0) + HANG_NOTICE_S if kind in HANGING else NOTICE_S for kind in KINDS}
    found["faults"] |= left | {
        "noticed late": sum(fault.noticed - fault.at > limits[fault.kind] for fault in fleet.faults),
        "ends of others": count_wrong_ends(pool.sent, fleet.faults),
        "processes lost by a failed step": num_lost,
        "processes left": fleet.count_left(),
    }
    named = sum(f"stage {fault.stage} of" in fault.reason for fault in fleet.faults)
    return found | {"struck": dict(Counter(fault.kind for fault in fleet.faults)), "stage_named": named}


def sabotage(run: Run) -> None:
    """Make a stage fail in every way, equally often; only requests in a failing step end with an error."""
    for formation, times, num_clients in SABOTAGED:
        size = run.times(times), num_clients
        with private_folder() as private:
            work = partial(measure_sabotage, formation, run, size, private)
            run.part(formation.name, lambda: asyncio.run(work()))


async def measure_detection(fault: str, rounds: int) -> Figures:
    found, losses = list[float](), 0
    with private_folder() as folder:
        os.environ["PARALLAX_HOME"] = str(folder)
        Keyring(folder / "keys").make("default")
        pipeline = Pipeline(folder, is_tcp=True, timeout_s=TIMEOUT_S)
        await pipeline.registry.start()
        async with AsyncExitStack() as stack:
            stack.push_async_callback(pipeline.registry.stop)
            wire = await lead(pipeline, stack)
            await stack.enter_async_context(serving(pipeline))
            for _ in range(rounds):
                await pipeline.check()
                await asyncio.sleep(3.0)  # of heartbeats
                losses, pid = len(pipeline.reasons), pipeline.pids[1]
                following = await lead(pipeline, stack)
                begun = time.monotonic()
                if fault == "half-open":
                    wire.flows.clear()
                else:
                    os.kill(pid, {"kill": 9, "stop": signal.SIGSTOP}.get(fault, signal.SIGUSR1))
                noticed = await wait_loss(pipeline, losses, 6.0 if fault == "blocked loop" else 60.0)
                found += [noticed - begun] if noticed else []
                wire = following if noticed else wire
                await pipeline.until("ready")
                say(fault, found[-1:])
    reasons = sorted({re.sub(r"\d+(\.\d+)?", "N", reason) for reason in pipeline.reasons})
    wrong = len(found) if fault == "blocked loop" else rounds - len(found)
    return {"rounds": rounds, "noticed_s": spread(found), "reasons": reasons, "faults": {"wrongly judged": wrong}}


async def lead(pipeline: Pipeline, stack: AsyncExitStack) -> Wire:
    wire = await stack.enter_async_context(stretched(pipeline.registry.address))
    pipeline.addresses["worker/1"] = wire.address
    return wire


async def wait_loss(pipeline: Pipeline, known: int, seconds: float) -> float | None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if len(pipeline.reasons) > known:
            return time.monotonic()
        await asyncio.sleep(0.002)
    return None


async def measure_slow(run: Run, backend: str, seconds: float, private: Path) -> Figures:
    fleet = Fleet(Formation(name=backend, sizes=(15, 15), backend=backend), run.model, private)
    pool = make_pool(fleet, random.Random(run.seed))
    async with running(fleet):
        with busy_cores(2 * count_cores()):
            clients = [asyncio.create_task(pool.send_requests()) for _ in range(4)]
            await asyncio.sleep(seconds)
            hung = await finish_clients(clients, pool)
    return {"requests": len(pool.sent), "faults": {"hung": hung, "lost": len(fleet.losses)}}


def detection(run: Run) -> None:
    """Kill, stop, cut off or block the second of three stages, on idle and busy cores; and slow a real model down."""
    for machine, rounds in (("idle", 20), ("busy", 8)):
        for fault in ("kill", "stop", "half-open", "blocked loop"):
            with busy_cores(2 * count_cores() if machine == "busy" else 0):
                work = partial(measure_detection, fault, run.times(rounds))
                run.part(f"{fault}, {machine} machine", lambda: asyncio.run(work()))
    for backend in ("mlx", "torch"):
        with private_folder() as private:
            slow: Any = partial(measure_slow, run, backend, run.seconds(600.0), private)
            run.part(f"slow {backend}", lambda: asyncio.run(slow()))

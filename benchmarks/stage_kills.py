"""Do streams go on when the worker of any stage is killed or stopped, and after what pause?

    python -m benchmarks.stage_kills MODEL_FOLDER --out benchmarks/results/stage-kills.json

Pipelines of worker processes, as in `FORMATIONS`: the toy in one to five stages, one to three replicas, with and
without spares, and the model in two stages on each backend. Four clients read streams without a pause, of requests
that are greedy or sampled with a seed and penalties; what they must get is recorded before the first fault. Then a
stage chosen at random is killed (SIGKILL), or every third time stopped (SIGSTOP); again once all replicas serve, all
spares are loaded, and a request sent since has been answered.

Every stream must end with the recorded tokens, none twice and none missing. (On the model, a batch of other requests
may round differently at a near-tie: such answers are counted as ``different``.) The pause of a fault is the longest
wait for a token of any stream that was waiting when the fault was noticed. In the end no process may be left, and
every page must be free.

What a run has found is kept by formation, and not measured again.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import random
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import count, pairwise
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.record import describe_run, read_report, write_report
from parallax_core.api import LayerRange, Request, RequestId, Sampling, TransportPlan, Unavailable
from parallax_core.builtin.routing import LeastPendingTokens
from parallax_core.node.executor.remote import RemoteExecutor
from parallax_core.node.membership.assignment import StageAssignment
from parallax_core.node.membership.registry import NodeRegistry
from parallax_core.node.membership.spares import SparePool
from parallax_core.node.membership.supervisor import WorkerSupervisor
from parallax_core.node.membership.supply import NodeSupply
from parallax_core.node.pipeline.engine import PipelineEngine
from parallax_core.node.pipeline.options import PipelineOptions
from parallax_core.node.routing.router import Router
from parallax_transport_zmq.address import place_local
from parallax_transport_zmq.transport import ZmqTransport
from tests.support.heads import drop_stored

logger = logging.getLogger(__name__)

CLIENTS = 4
TIMEOUT_S = 2.5
"""Seconds of silence after which a worker counts as lost at the latest; the default."""
STOP_EVERY = 3
PATIENCE_S = 120.0
GAP_S = 0.05
"""Shorter waits for a token are not recorded."""
PROMPTS = 12
VOCAB = 30
"""Token ids of prompts, which all models have."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Formation:
    """Replicas of a pipeline, and their spares."""

    name: str
    sizes: tuple[int, ...]
    """Layers of each stage."""
    replicas: int = 1
    spares: int = 0
    backend: str = "toy"
    pools: tuple[str, ...] = ("full", "window", "state", "full", "window")
    """The pools of the toy's layers."""
    kills: int = 100


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
    Formation(name="2 stages, 2 replicas, spare each", sizes=(2, 3), replicas=2, spares=2),
    Formation(name="mlx, 2 stages", sizes=(12, 18), backend="mlx", kills=25),
    Formation(name="mlx, 2 stages, spare each", sizes=(12, 18), backend="mlx", spares=2, kills=25),
    Formation(name="torch, 2 stages", sizes=(12, 18), backend="torch", kills=25),
    Formation(name="torch, 2 stages, spare each", sizes=(12, 18), backend="torch", spares=2, kills=25),
)


@dataclass(slots=True)
class Fault:
    """A worker that was killed or stopped, with times in seconds."""

    kind: str
    at: float
    noticed: float = 0.0
    ready: float = 0.0
    pause_s: float = 0.0


@dataclass(slots=True)
class Answer:
    """A stream that a client has read."""

    number: int
    """The number of the request in the list."""
    tokens: list[int] = field(default_factory=list)
    finish: str = ""
    message: str = ""
    gaps: list[tuple[float, float]] = field(default_factory=list)
    """From when until when it waited for a token."""


class Fleet:
    """The worker processes of a formation, and the router over them."""

    def __init__(self, formation: Formation, folder: Path, private: Path) -> None:
        self._formation = formation
        self._private = private
        self._model = ",".join(formation.pools) if formation.backend == "toy" else str(folder)
        head = TransportPlan(node="head", listen=place_local(private, "head"), timeout_s=TIMEOUT_S)
        self.registry = NodeRegistry(ZmqTransport(head), "head")
        self.supervisor = WorkerSupervisor(self._make_command)
        self.spares = SparePool(formation.spares, self.registry, self.supervisor)
        self.faults: list[Fault] = []
        self.pids: set[int] = set()
        options = PipelineOptions(releases_requests=lambda: formation.replicas > 1)
        supply = NodeSupply(self.registry, self.supervisor, self.spares)
        self.engines = [
            PipelineEngine(RemoteExecutor(self._assign(rank), supply), write, options, self._note_loss)
            for rank in range(formation.replicas)
        ]
        self.router = Router(self.engines, LeastPendingTokens(), lambda: self.engines[0].infos[0].context_length)

    async def hit(self, rng: random.Random) -> Fault:
        """Kill or stop the worker of a stage, and wait until all is as before."""
        replica = rng.choice(self.engines)
        pid = rng.choice(replica.locations()).pid
        stops = len(self.faults) % STOP_EVERY == STOP_EVERY - 1
        number = signal.SIGSTOP if stops else signal.SIGKILL
        fault = Fault(number.name, now())
        self.faults.append(fault)
        os.kill(pid, number)
        async with asyncio.timeout(PATIENCE_S):
            while not fault.noticed:  # noqa: ASYNC110 -- the engine notes it
                await asyncio.sleep(0.002)
        await self.wait_ready()
        fault.ready = now()
        return fault

    async def wait_ready(self) -> None:
        """Wait until all replicas serve and all spares are loaded."""
        async with asyncio.timeout(PATIENCE_S):
            while not self._is_ready():
                self.pids.update(self.supervisor.pids)
                await asyncio.sleep(0.01)
        self.pids.update(self.supervisor.pids)

    async def count_used(self) -> int:
        """Drop the cached prefixes, and return the number of pages still in use."""
        for engine in self.engines:
            assert engine._head is not None
            assert engine._driver is not None
            drop_stored(engine._head)
            engine._driver.wake()
        await asyncio.sleep(1.0)
        return sum(pool.used for engine in self.engines for pool in engine.stats()[0].pools)

    def _is_ready(self) -> bool:
        loaded = sum(spare.is_loaded for spare in self.spares.spares)
        return loaded == self._formation.spares and all(each.health().state == "ready" for each in self.engines)

    def _note_loss(self, reason: str) -> None:
        if self.faults and not self.faults[-1].noticed:
            self.faults[-1].noticed = now()
        else:
            logger.warning("another loss: %s", reason)

    def _assign(self, rank: int) -> list[StageAssignment]:
        sizes = self._formation.sizes
        return [
            StageAssignment(
                stage=stage,
                layers=LayerRange(sum(sizes[:stage]), sum(sizes[: stage + 1])),
                model=self._model,
                backend="" if self._formation.backend == "toy" else self._formation.backend,
                dtype="float32",
                memory_fraction=0.03,
                node=f"worker/{rank}/{stage}",
            )
            for stage in range(len(sizes))
        ]

    def _make_command(self, node: str) -> Sequence[str]:
        near = place_local(self._private, node)
        if self._formation.backend == "toy":
            transport = "parallax_transport_zmq.transport:ZmqTransport"
            plan = {"node": node, "transport": transport, "connect": self.registry.address, "listen": near}
            return [sys.executable, "-m", "parallax_core.testing.node", json.dumps({**plan, "timeout_s": TIMEOUT_S})]
        command = [sys.executable, "-P", "-m", "parallax_core", "worker", "--supervised", "--transport", "zmq"]
        command += ["--connect", self.registry.address, "--listen", near, "--node", node]
        return [*command, "--backend", self._formation.backend]


class Clients:
    """Clients that read one stream after the other."""

    def __init__(self, router: Router, rng: random.Random, length: int) -> None:
        self._router = router
        self._random = rng
        self._names = count()
        self.requests = [make_request(rng, length, is_sampled=number % 2 == 1) for number in range(PROMPTS)]
        self.answers: list[Answer] = []
        self.reading: set[int] = set()
        self.is_over = False
        self._answered = asyncio.Event()

    async def read_all(self) -> list[list[int]]:
        """Return the tokens of each request."""
        return [(await self.read(number)).tokens for number in range(PROMPTS)]

    async def work(self) -> None:
        """Read streams until `is_over`."""
        while not self.is_over:
            try:
                answer = await self.read(self._random.randrange(PROMPTS))
            except Unavailable:
                await asyncio.sleep(0.05)
                continue
            self.answers.append(answer)
            self._answered.set()

    async def wait_answer(self) -> None:
        """Wait until a request that is sent from now on is answered; those under way come first."""
        for _ in range(CLIENTS + 1):
            self._answered.clear()
            async with asyncio.timeout(PATIENCE_S):
                await self._answered.wait()

    async def read(self, number: int) -> Answer:
        """Send a request and read its stream.

        Raises:
            Unavailable: if the router refuses it.
        """
        prompt, length, sampling = self.requests[number]
        name = RequestId(str(next(self._names)))
        stream = self._router.submit(Request(id=name, prompt=prompt, max_tokens=length, sampling=sampling))
        answer, latest = Answer(number), now()
        async for delta in stream:
            if now() - latest > GAP_S:
                answer.gaps.append((latest, now()))
            latest = now()
            answer.tokens += delta.tokens
            if delta.finish is not None:
                answer.finish, answer.message = delta.finish.reason, delta.finish.message
        return answer


def make_request(rng: random.Random, length: int, *, is_sampled: bool) -> tuple[tuple[int, ...], int, Sampling]:
    """Return a prompt, the length of the answer, and the sampling."""
    prompt = tuple(rng.randrange(VOCAB) for _ in range(rng.randint(1, 40)))
    sampling = Sampling(temperature=0)
    if is_sampled:
        sampling = Sampling(temperature=0.9, top_p=0.95, seed=rng.randrange(2**32), presence_penalty=0.5, min_tokens=9)
    return prompt, rng.randint(length // 3, length), sampling


@asynccontextmanager
async def running(fleet: Fleet) -> AsyncIterator[None]:
    """Start a fleet, and stop it at the end."""
    await fleet.registry.start()
    try:
        await fleet.router.start()
        await fleet.wait_ready()
        yield
    finally:
        await fleet.router.stop()
        await fleet.spares.stop()
        await fleet.registry.stop()


async def measure(formation: Formation, folder: Path, private: Path, kills: int) -> dict[str, Any]:
    """Kill workers of a formation, and return the figures."""
    rng = random.Random(formation.name)  # noqa: S311 -- to be the same every time, not to be secret
    fleet = Fleet(formation, folder, private)
    clients = Clients(fleet.router, rng, 180 if formation.backend == "toy" else 60)
    begun = now()
    async with running(fleet):
        rights = await clients.read_all()
        working = [asyncio.create_task(clients.work()) for _ in range(CLIENTS)]
        for number in range(kills):
            await clients.wait_answer()
            await asyncio.sleep(rng.uniform(0, 0.5))
            print(formation.name, number, await fleet.hit(rng), len(clients.answers), file=sys.stderr, flush=True)
        await clients.wait_answer()
        clients.is_over = True
        _, hung = await asyncio.wait(working, timeout=PATIENCE_S)
        used = await fleet.count_used()
    left = sum(map(exists, fleet.pids))
    return {
        "seconds": round(now() - begun, 1),
        "replicas": formation.replicas,
        "spares": formation.spares,
        **judge(clients.answers, rights, fleet.faults),
        "hung": len(hung),
        "pages_used": used,
        "processes_left": left,
    }


def judge(answers: Sequence[Answer], rights: Sequence[Sequence[int]], faults: Sequence[Fault]) -> dict[str, Any]:
    """Return how the streams ended, and how long the pauses were."""
    gaps = [gap for answer in answers for gap in answer.gaps]
    ends = [*(fault.at for fault in faults[1:]), float("inf")][: len(faults)]
    for fault, end in zip(faults, ends, strict=True):
        waits = [until - since for since, until in gaps if since < fault.noticed < until <= end]
        fault.pause_s = max(waits, default=0.0)
    assert all(first.at < second.at for first, second in pairwise(faults))
    kinds = {kind: [fault for fault in faults if fault.kind == kind] for kind in ("SIGKILL", "SIGSTOP")}
    return {
        "streams": len(answers),
        "lost": sum(answer.finish not in {"length", "stop"} for answer in answers),
        "different": sum(answer.tokens != rights[answer.number] for answer in answers),
        "errors": sorted({answer.message for answer in answers if answer.message}),
        "faults": {kind: describe(found) for kind, found in kinds.items() if found},
    }


def describe(faults: Sequence[Fault]) -> dict[str, Any]:
    """Return the number of faults, and their times in seconds."""
    return {
        "number": len(faults),
        "noticed_s": spread([fault.noticed - fault.at for fault in faults]),
        "pause_s": spread([fault.pause_s for fault in faults]),
        "ready_s": spread([fault.ready - fault.at for fault in faults]),
    }


def spread(seconds: Sequence[float]) -> dict[str, float]:
    """Return the median, the 95th percentile and the maximum."""
    kept = sorted(seconds)
    p95 = kept[min(len(kept) - 1, round(0.95 * (len(kept) - 1)))]
    return {name: round(value, 3) for name, value in (("p50", median(kept)), ("p95", p95), ("max", kept[-1]))}


def write(tokens: Sequence[int]) -> str:
    """Return a text for tokens; the figures concern the tokens themselves."""
    return "x" * len(tokens)


def exists(pid: int) -> bool:
    """Return whether a process exists; one that has been waited for does not."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def now() -> float:
    """Return the time of the running loop, in seconds."""
    return asyncio.get_running_loop().time()


def main() -> None:
    """Measure what is not measured yet, print, and write the report."""
    names = [formation.name for formation in FORMATIONS]
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("model", type=Path, help="a model folder")
    parser.add_argument("--only", nargs="+", default=names, choices=names, metavar="FORMATION")
    parser.add_argument("--kills", type=int, default=0, help="of each formation (default: 100, of the model 25)")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    logging.basicConfig(level=logging.ERROR, format="%(asctime)s %(message)s")
    for formation in FORMATIONS:
        if formation.name not in options.only or formation.name in read_report(options.out):
            continue
        with TemporaryDirectory(prefix="kills-") as private:
            kills = options.kills or formation.kills
            found = asyncio.run(measure(formation, options.model, Path(private), kills))
        found |= describe_run(["benchmarks.stage_kills", options.model.name], ["pyzmq", "mlx", "torch"])
        print(json.dumps({formation.name: found}, indent=2))
        write_report(options.out, read_report(options.out) | {formation.name: found})
        assert not found["lost"] + found["hung"] + found["pages_used"] + found["processes_left"]
        assert formation.backend != "toy" or not found["different"]


if __name__ == "__main__":
    main()

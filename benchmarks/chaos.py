"""Checks that requests survive when the stages that serve them fail, in every way a stage can fail.

    python -m benchmarks.chaos MODEL_FOLDER --out benchmarks/results/chaos.json

The stages of a pipeline are worker processes: three stages of the toy model, with 200 faults; one stage with the whole
toy, with 50 faults; and three stages of the real model on the MLX backend, with 20 faults. While clients send requests,
a fault hits a stage chosen at random, whatever it is doing; the next fault follows once a request sent since then has
been answered. The faults are equally frequent: the process is killed (SIGKILL) or stopped (SIGSTOP); it is killed and
its replacement fails to open the stage once or twice (refuse); or its next step fails as `benchmarks.sabotage` defines
(event, kernel, lock, memory, nan, lost, pages).

Every request must end with the right tokens. When a stage is lost, requests wait for the repaired pipeline, are
recomputed from their prompts and the tokens already sent, and continue; ``pause_s`` is the longest wait of each for a
token. Only requests in a failing step end with an error. A fault must be noticed within 3 s; a hanging step, within 2 s
of the step timeout, which is set to `STEP_TIMEOUTS_S`. Where only a step fails, only its requests end (for a NaN row,
only the request of that row), and no process is lost. In the end no process may be left over, and once the cached
prefixes are dropped every page must be free; one more request makes all stages report their free pages, which must
match what the head believes.
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
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast, get_args

from benchmarks.crowd import TOY, ClientPool, continue_prompts, finish_clients, now
from benchmarks.outcome import FAILING, Strike, judge
from benchmarks.record import describe_run, read_report, write_report
from benchmarks.sabotage import Kind, order, read_rows
from parallax_core.api import Finish, LayerRange, TransportPlan
from parallax_core.builtin.routing import LeastPendingTokens
from parallax_core.node.executor.remote import RemoteExecutor
from parallax_core.node.membership.assignment import StageAssignment
from parallax_core.node.membership.registry import NodeRegistry
from parallax_core.node.membership.supervisor import WorkerSupervisor
from parallax_core.node.membership.supply import NodeSupply
from parallax_core.node.pipeline.engine import PipelineEngine
from parallax_core.node.pipeline.options import PipelineOptions
from parallax_core.node.routing.router import Router
from parallax_transport_zmq.address import place_local
from parallax_transport_zmq.transport import ZmqTransport
from tests.support.heads import drop_stored

TIMES = {"toy": 200, "alone": 50, "model": 20}
STAGES = {"toy": 3, "alone": 1, "model": 3}
CLIENTS = {"toy": 16, "alone": 16, "model": 4}
STEP_TIMEOUTS_S = {"toy": 2.0, "alone": 2.0, "model": 5.0}
LAYERS = {"toy": 3, "alone": 3, "model": 30}
PATIENCE_S = 120.0
TIMEOUT_S = 2.5
"""Seconds of silence after which a worker counts as lost; the default."""
KINDS = ("SIGKILL", "SIGSTOP", *get_args(Kind))


class Pipeline:
    """The worker processes of one kind of pipeline, and the engine over them."""

    def __init__(self, kind: str, folder: Path, private: Path) -> None:
        self._kind = kind
        self._folder = folder
        self._private = private
        transport = ZmqTransport(TransportPlan(node="head", listen=place_local(private, "head"), timeout_s=TIMEOUT_S))
        self.registry = NodeRegistry(transport, "head")
        self.supervisor = WorkerSupervisor(self._make_command)
        self.strikes: list[Strike] = []
        self.pids: set[int] = set()
        self.num_lost = 0
        """Faults after which a process was replaced although only a step had failed."""
        self._roles = [self._make_role(stage) for stage in range(STAGES[kind])]
        plan = PipelineOptions(step_timeout_s=STEP_TIMEOUTS_S[kind])
        executor = RemoteExecutor(self._roles, NodeSupply(self.registry, self.supervisor))
        self.engine = PipelineEngine(executor, lambda tokens: "x" * len(tokens), plan, self._note_loss)
        self.router = Router([self.engine], LeastPendingTokens(), lambda: self.engine.infos[0].context_length)

    def _make_role(self, stage: int) -> StageAssignment:
        size = LAYERS[self._kind] // STAGES[self._kind]
        model = str(self._folder) if self._kind == "model" else ",".join(TOY.layers)
        layers = LayerRange(stage * size, (stage + 1) * size)
        return StageAssignment(
            stage=stage, layers=layers, model=model, node=f"worker/0/{stage}", dtype="float32", memory_fraction=0.05
        )

    def _make_command(self, node: str) -> Sequence[str]:
        near = place_local(self._private, node)
        command = [sys.executable, "-m", "benchmarks.sabotage", str(self._private)]
        if self._kind != "model":
            transport = "parallax_transport_zmq.transport:ZmqTransport"
            plan = {"node": node, "transport": transport, "connect": self.registry.address, "listen": near}
            return [*command, "toy", json.dumps({**plan, "timeout_s": TIMEOUT_S})]
        options = {"--connect": self.registry.address, "--listen": near, "--node": node, "--backend": "mlx"}
        words = [word for pair in options.items() for word in pair]
        return [*command, "model", "worker", "--supervised", *words]

    def _note_loss(self, reason: str) -> None:
        """Note that the engine has lost a stage."""
        self._notice(reason, is_loss=True)

    def note_error(self, finish: Finish) -> None:
        """Note that a request has ended with an error."""
        self._notice(finish.message, is_loss=False)

    def _notice(self, reason: str, *, is_loss: bool) -> None:
        if self.strikes and is_loss != (self.strikes[-1].kind in FAILING):
            strike = self.strikes[-1]
            strike.noticed = strike.noticed or now()
            strike.reason = strike.reason or reason

    async def wait_ready(self) -> None:
        """Wait until the engine is ready."""
        async with asyncio.timeout(PATIENCE_S):
            while self.engine.health().state != "ready":
                assert self.engine.health().state != "failed", self.engine.health().reason
                self.pids.update(self.supervisor.pids)
                await asyncio.sleep(0.005)
        self.pids.update(self.supervisor.pids)

    async def strike(self, kind: str, rng: random.Random) -> None:
        """Inflict a fault on a random stage, and wait until the pipeline is ready again."""
        strike, pids = Strike(kind, rng.randrange(len(self._roles)), now()), set(self.supervisor.pids)
        strike.ordered = strike.at
        if kind in signal.Signals.__members__:
            self.strikes.append(strike)
            self._send(strike.stage, signal.Signals[kind])
        elif kind == "refuse":
            await self._refuse(strike, rng.randint(1, 2))
        else:
            await self._sabotage(strike)
        async with asyncio.timeout(PATIENCE_S):
            while not strike.noticed:  # noqa: ASYNC110 -- the engine or a client notes it
                await asyncio.sleep(0.002)
        await self.wait_ready()
        strike.ready = now()
        self.num_lost += kind in FAILING and pids != set(self.supervisor.pids)

    def _send(self, stage: int, number: signal.Signals) -> None:
        os.kill(self.engine.locations()[stage].pid, number)

    async def _refuse(self, strike: Strike, times: int) -> None:
        """Kill the process of a stage, and make its next ``times`` replacements fail to open the stage."""
        self.strikes.append(strike)
        for trial in range(times):
            path = self._order(strike)
            if not trial:
                self._send(strike.stage, signal.SIGKILL)
            await self._wait_gone(path)

    async def _sabotage(self, strike: Strike) -> None:
        """Make the next step of a stage fail, and note the time when it does."""
        path = self._order(strike)
        self.strikes.append(strike)
        await self._wait_gone(path)
        strike.at, strike.rows = now(), read_rows(path)

    def _order(self, strike: Strike) -> Path:
        layers = self._roles[strike.stage].layers
        return order(self._private, layers.start if layers else 0, cast("Kind", strike.kind))

    async def _wait_gone(self, path: Path) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while exists_file(path):
                self.pids.update(self.supervisor.pids)
                await asyncio.sleep(0.002)

    async def count_used(self) -> list[int]:
        """Drop the cached prefixes on all stages, and return the pages still in use, for every pool."""
        head, driver = self.engine._head, self.engine._driver
        assert head is not None
        assert driver is not None
        drop_stored(head)
        driver.wake()
        await asyncio.sleep(0.5)
        head.check()
        return [pool.used for pool in self.engine.stats()[0].pools]


def deal(rng: random.Random, kinds: Sequence[str]) -> Iterator[str]:
    """Yield kinds of faults in random order, each equally often."""
    while True:
        yield from rng.sample(kinds, len(kinds))


def exists_file(path: Path) -> bool:
    """Return whether a file exists."""
    return path.exists()


def exists(pid: int) -> bool:
    """Return whether a process exists; one that has been waited for does not."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@asynccontextmanager
async def running(pipeline: Pipeline) -> AsyncIterator[None]:
    """Start a pipeline, and stop it at the end."""
    await pipeline.registry.start()
    try:
        await pipeline.router.start()
        yield
    finally:
        await pipeline.router.stop()
        await pipeline.registry.stop()


async def run(kind: str, folder: Path, times: int, private: Path, only: Sequence[str]) -> dict[str, Any]:
    """Inflict ``times`` faults on one kind of pipeline, and return the figures."""
    rights = await continue_prompts(folder) if kind == "model" else {}
    pipeline, begun = Pipeline(kind, folder, private), now()
    rng = random.Random(7)  # noqa: S311 -- to be the same every time, not to be secret
    turns = deal(rng, only)
    prompt_rng = random.Random(8)  # noqa: S311 -- the same
    pool = ClientPool(pipeline.router, prompt_rng, pipeline.note_error, is_toy=kind != "model")
    async with running(pipeline):
        await pipeline.wait_ready()
        clients = [asyncio.create_task(pool.send_requests()) for _ in range(CLIENTS[kind])]
        for number in range(times):
            await pool.wait_answer()
            await asyncio.sleep(rng.uniform(0.5, 3.0) if kind == "model" else rng.uniform(0.05, 0.6))
            await pipeline.strike(next(turns), rng)
            print(kind, number, pipeline.strikes[-1], len(pool.sent), file=sys.stderr, flush=True)
        hung = await finish_clients(clients, pool)
        before = await pipeline.count_used()
        last = await pool.send()
        used = await pipeline.count_used()
        assert last is not None
        assert last.reason == "length", last
    left = sum(map(exists, pipeline.pids))
    found = judge(pool.sent, pipeline.strikes, rights, STEP_TIMEOUTS_S[kind])
    lost = {"hung": hung, "processes lost": pipeline.num_lost, "processes left": left}
    found["faults"] |= {**lost, "pages used": sum(before) + sum(used)}
    facts = {"requests": len(pool.sent), "refused": pool.num_refused, "processes": len(pipeline.pids)}
    return {**facts, "seconds": round(now() - begun, 1), **found}


def main() -> None:
    """Measure, print, and write the report."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("model", type=Path, help="a model folder")
    parser.add_argument("--kinds", nargs="+", default=list(TIMES), choices=list(TIMES))
    parser.add_argument("--only", nargs="+", default=list(KINDS), choices=KINDS, help="inflict only these faults")
    parser.add_argument("--times", type=int, default=0, help="faults of each pipeline (default: 200, 50 and 20)")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    for kind in options.kinds:
        with TemporaryDirectory(prefix="chaos-") as private:
            times = options.times or TIMES[kind]
            found = asyncio.run(run(kind, options.model, times, Path(private), options.only))
        found |= describe_run(["benchmarks.chaos", options.model.name, "--kinds", kind], ["pyzmq", "mlx"])
        print(json.dumps(found, indent=2))
        write_report(options.out, read_report(options.out) | {kind: found})
        assert not any(found["faults"].values())


if __name__ == "__main__":
    main()

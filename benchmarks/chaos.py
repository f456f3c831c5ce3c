"""What becomes of requests when the processes that serve them are killed or stopped?

    python -m benchmarks.chaos MODEL_FOLDER --out benchmarks/results/chaos.json

Three worker processes are the stages of a pipeline, once of a toy, 200 times, and once of the model on the MLX backend,
20 times. While clients ask, a worker chosen at random is sent SIGKILL or SIGSTOP, whatever it is doing; as soon as the
pipeline is ready again, the next.

Every request must end: with the right tokens, or with an error event no later than 5 s after the loss was noticed.
Requests that were not answered when a stage was lost are computed again on the repaired pipeline, and so end with
tokens. A loss must be noticed within 3 s. In the end no process may be left, and when what is only stored for its
beginning has been dropped, every page is free; one more request has all stages say what they have free, which must be
what the head believes.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import random
import signal
import statistics
import sys
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.record import describe_run, read_report, write_report
from parallax_core.api import LayerRange, Request, RequestId, Sampling, StagePlan, TransportPlan, Unavailable
from parallax_core.builtin.routing import LeastPendingTokens
from parallax_core.node.crew import Crew
from parallax_core.node.muster import Muster
from parallax_core.node.nursery import Nursery
from parallax_core.node.pipeline import PipelineEngine
from parallax_core.node.role import Role
from parallax_core.node.router import Router
from parallax_core.node.troop import Troop
from parallax_core.testing.toy import Toy
from parallax_transport_zmq.address import place_local
from parallax_transport_zmq.transport import ZmqTransport

TIMES = {"toy": 200, "model": 20}
CLIENTS = {"toy": 16, "model": 4}
NOTICE_S, END_S, PATIENCE_S = 3.0, 5.0, 120.0
TIMEOUT_S = 2.5
"""The silence after which a worker counts as lost, as it is by default."""
TOY = Toy(("full", "window", "full"))
LENGTH = 16
"""Tokens of each answer of the model."""
PROMPTS = [list(range(start, start + size)) for start, size in ((500, 7), (900, 19), (40, 3), (12_000, 33), (7, 12))]
"""Token ids: what they mean is of no account."""


@dataclass(slots=True)
class Asked:
    """A request that was made."""

    prompt: tuple[int, ...]
    length: int
    began: float
    ended: float = 0.0
    tokens: list[int] = field(default_factory=list)
    reason: str = ""


@dataclass(slots=True)
class Loss:
    """A worker that was lost."""

    signal: str
    stage: int
    at: float
    noticed: float = 0.0
    reason: str = ""
    ready: float = 0.0


class Pipeline:
    """The processes of one kind, and the engine over them."""

    def __init__(self, kind: str, folder: Path, private: Path) -> None:
        self._kind = kind
        self._folder = folder
        self._private = private
        transport = ZmqTransport(TransportPlan(node="head", listen=place_local(private, "head"), timeout_s=TIMEOUT_S))
        self.muster = Muster(transport, "head")
        self.nursery = Nursery(self._make_command)
        self.losses: list[Loss] = []
        self.pids: set[int] = set()
        troop = Troop([self._make_role(stage) for stage in range(3)], self.muster, self.nursery)
        self.engine = PipelineEngine(troop, lambda tokens: "x" * len(tokens), on_lost=self._note)
        self.router = Router([self.engine], LeastPendingTokens(), lambda: self.engine.infos[0].context_length)

    def _make_role(self, stage: int) -> Role:
        size = 1 if self._kind == "toy" else 10
        model = ",".join(TOY.layers) if self._kind == "toy" else str(self._folder)
        layers = LayerRange(stage * size, (stage + 1) * size)
        return Role(
            stage=stage, layers=layers, model=model, node=f"worker/0/{stage}", dtype="float32", memory_fraction=0.05
        )

    def _make_command(self, node: str) -> Sequence[str]:
        near = place_local(self._private, node)
        if self._kind == "toy":
            transport = "parallax_transport_zmq.transport:ZmqTransport"
            plan = {"node": node, "transport": transport, "connect": self.muster.address, "listen": near}
            return [sys.executable, "-m", "parallax_core.testing.node", json.dumps({**plan, "timeout_s": TIMEOUT_S})]
        options = {"--connect": self.muster.address, "--listen": near, "--node": node, "--backend": "mlx"}
        words = [word for pair in options.items() for word in pair]
        return [sys.executable, "-m", "parallax_core", "worker", "--supervised", *words]

    def _note(self, reason: str) -> None:
        if self.losses:
            self.losses[-1].noticed = self.losses[-1].noticed or _now()
            self.losses[-1].reason = self.losses[-1].reason or reason

    async def wait_ready(self) -> None:
        """Wait until it can answer."""
        async with asyncio.timeout(PATIENCE_S):
            while self.engine.health().state != "ready":
                assert self.engine.health().state != "failed", self.engine.health().reason
                await asyncio.sleep(0.005)
        self.pids.update(post.pid for post in self.engine.posts())

    async def wait_tokens(self) -> None:
        """Wait until something is answered: a pipeline that is lost again and again before that gives up."""
        before = self.engine.stats()[0].output_tokens
        async with asyncio.timeout(PATIENCE_S):
            while self.engine.stats()[0].output_tokens == before:  # noqa: ASYNC110 -- nobody tells
                await asyncio.sleep(0.005)

    async def strike(self, rng: random.Random) -> None:
        """Have a worker lost, and wait until the pipeline is ready again."""
        number, stage = rng.choice((signal.SIGKILL, signal.SIGSTOP)), rng.randrange(3)
        loss = Loss(number.name, stage, _now())
        self.losses.append(loss)
        os.kill(self.engine.posts()[stage].pid, number)
        async with asyncio.timeout(PATIENCE_S):
            while not loss.noticed:  # noqa: ASYNC110 -- the engine notes it
                await asyncio.sleep(0.002)
        await self.wait_ready()
        loss.ready = _now()

    async def count_used(self) -> list[int]:
        """Return the pages in use of every pool once what is only stored is dropped, on all stages."""
        head, drive = self.engine._head, self.engine._drive
        assert head is not None
        assert drive is not None
        while head._store.evict(None):
            pass
        drive.wake()
        await asyncio.sleep(0.5)
        head.check()
        return [pool.used for pool in self.engine.stats()[0].pools]


class Crowd:
    """The clients, who ask without a pause."""

    def __init__(self, kind: str, router: Router, rng: random.Random) -> None:
        self._kind = kind
        self._router = router
        self._random = rng
        self._names = count()
        self.asked: list[Asked] = []
        self.num_refused = 0
        self.is_over = False

    async def keep_asking(self) -> None:
        """Ask until it is time to go home."""
        while not self.is_over:
            await self.ask()

    async def ask(self) -> Asked | None:
        """Ask once; None if nothing is taken now."""
        prompt, length = self._think()
        name = RequestId(str(next(self._names)))
        request = Request(id=name, prompt=prompt, max_tokens=length, sampling=Sampling(temperature=0))
        try:
            stream = self._router.submit(request)
        except Unavailable:
            self.num_refused += 1
            await asyncio.sleep(0.05)
            return None
        asked = Asked(prompt, length, _now())
        self.asked.append(asked)
        async for delta in stream:
            asked.tokens += delta.tokens
            if delta.finish is not None:
                asked.reason = delta.finish.reason
        asked.ended = _now()
        return asked

    def _think(self) -> tuple[tuple[int, ...], int]:
        if self._kind == "model":
            return tuple(self._random.choice(PROMPTS)), LENGTH
        size = self._random.randint(1, 40)
        return tuple(self._random.randrange(TOY.vocab) for _ in range(size)), self._random.randint(2, 60)


async def continue_prompts(folder: Path) -> dict[tuple[int, ...], list[int]]:
    """Return what follows each prompt, of the model in one process."""
    from parallax_backend_mlx.backend import MlxBackend

    plan = StagePlan(model=folder, dtype="float32", memory_fraction=0.05)
    engine = PipelineEngine(Crew([partial(MlxBackend().open_stage, plan)]), lambda tokens: "x" * len(tokens))
    await engine.start()

    async def ask(number: int) -> list[int]:
        name, prompt = RequestId(f"reference-{number}"), tuple(PROMPTS[number])
        request = Request(id=name, prompt=prompt, max_tokens=LENGTH, sampling=Sampling(temperature=0))
        return [token async for delta in engine.submit(request) for token in delta.tokens]

    answers = await asyncio.gather(*map(ask, range(len(PROMPTS))))
    await engine.stop()
    return dict(zip(map(tuple, PROMPTS), answers, strict=True))


def judge(asked: Sequence[Asked], losses: Sequence[Loss], rights: dict[tuple[int, ...], list[int]]) -> dict[str, Any]:
    """Return what came of the requests; every figure of "faults" has to be 0."""
    wrong = 0
    for each in asked:
        right = rights.get(each.prompt) or TOY.continuation(each.prompt, each.length)
        is_whole = each.reason != "length" or len(each.tokens) == each.length
        wrong += each.tokens != right[: len(each.tokens)] or not is_whole
    errors, moved = list[float](), list[float]()
    for each in asked:
        if met := [loss for loss in losses if each.began < loss.noticed < each.ended]:
            last = met[-1]  # of those before it was computed again
            since = errors if each.reason == "error" else moved
            since.append(each.ended - (last.noticed if each.reason == "error" else last.ready))
    notice = [loss.noticed - loss.at for loss in losses]
    return {
        "ends": dict(Counter(each.reason or "none" for each in asked)),
        "notice_s": {
            name: summarize([loss.noticed - loss.at for loss in losses if loss.signal == name])
            for name in ("SIGKILL", "SIGSTOP")
        },
        "error_after_notice_s": summarize(errors),
        "tokens_after_repair_s": summarize(moved),
        "repair_s": summarize([loss.ready - loss.noticed for loss in losses]),
        "stage_named": sum(f"stage {loss.stage} of 3, on node" in loss.reason for loss in losses),
        "faults": {
            "wrong tokens": wrong,
            "without an end": sum(each.reason not in {"length", "error"} for each in asked),
            "noticed late": sum(seconds > NOTICE_S for seconds in notice),
            "told late": sum(seconds > END_S for seconds in errors),
        },
    }


def exists(pid: int) -> bool:
    """Return whether there is such a process; what has been waited for is none."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def summarize(seconds: Sequence[float]) -> dict[str, float]:
    """Return how many there are, the middle one and the longest."""
    if not seconds:
        return {"count": 0}
    return {"count": len(seconds), "median": round(statistics.median(seconds), 3), "most": round(max(seconds), 3)}


@asynccontextmanager
async def running(pipeline: Pipeline) -> AsyncIterator[None]:
    """Start, and stop."""
    await pipeline.muster.start()
    try:
        await pipeline.router.start()
        yield
    finally:
        await pipeline.router.stop()
        await pipeline.muster.stop()


async def run(kind: str, folder: Path, times: int, private: Path) -> dict[str, Any]:
    """Return what came of one kind."""
    rights = await continue_prompts(folder) if kind == "model" else {}
    pipeline, begun = Pipeline(kind, folder, private), _now()
    rng = random.Random(7)  # noqa: S311 -- to be the same every time, not to be secret
    crowd = Crowd(kind, pipeline.router, random.Random(8))  # noqa: S311 -- the same
    async with running(pipeline):
        await pipeline.wait_ready()
        clients = [asyncio.create_task(crowd.keep_asking()) for _ in range(CLIENTS[kind])]
        for number in range(times):
            await pipeline.wait_tokens()
            await asyncio.sleep(rng.uniform(0.05, 0.6) if kind == "toy" else rng.uniform(0.5, 3.0))
            await pipeline.strike(rng)
            print(kind, number, pipeline.losses[-1], len(crowd.asked), file=sys.stderr, flush=True)
        still = await quieten(clients, crowd)
        before = await pipeline.count_used()
        last = await crowd.ask()
        used = await pipeline.count_used()
        assert last is not None
        assert last.reason == "length", last
    left = sum(map(exists, pipeline.pids))
    found = judge(crowd.asked, pipeline.losses, rights)
    found["faults"] |= {"hung": still, "pages used": sum(before) + sum(used), "processes left": left}
    sent = dict(Counter(loss.signal for loss in pipeline.losses))
    facts = {"requests": len(crowd.asked), "refused": crowd.num_refused, "processes": len(pipeline.pids)}
    return {"sent": sent, **facts, "seconds": round(_now() - begun, 1), **found}


async def quieten(clients: Sequence[asyncio.Task[None]], crowd: Crowd) -> int:
    """Have nobody ask any more once what was asked is answered; return how many are not answered in time."""
    crowd.is_over = True
    _, hung = await asyncio.wait(clients, timeout=60)
    for client in hung:
        client.cancel()
    await asyncio.gather(*clients, return_exceptions=True)
    return len(hung)


def _now() -> float:
    return asyncio.get_running_loop().time()


def main() -> None:
    """Measure, print, and write with what a number needs beside it."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("model", type=Path, help="a model folder")
    parser.add_argument("--kinds", nargs="+", default=["toy", "model"])
    parser.add_argument("--times", type=int, default=0, help="how often, in place of 200 and 20")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    for kind in options.kinds:
        with TemporaryDirectory(prefix="chaos-") as private:
            found = asyncio.run(run(kind, options.model, options.times or TIMES[kind], Path(private)))
        found |= describe_run(["benchmarks.chaos", options.model.name, "--kinds", kind], ["pyzmq", "mlx"])
        print(json.dumps(found, indent=2))
        write_report(options.out, read_report(options.out) | {kind: found})
        assert not any(found["faults"].values())


if __name__ == "__main__":
    main()

"""Runs a server in its own process for other benchmarks: over the toy model, a sleeping stage, or a real model on MLX.

    python -m benchmarks.host KIND [MODEL_FOLDER]

KIND is toy, masked (a toy that follows grammars), mlx, sleep (a stage that only sleeps), or score (a sleeping stage
with a large cache that makes up log-probabilities). The server prints its port, and ends when its standard input ends.
Besides the API it has routes under ``/bench`` that show its state.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import gc
import json
import math
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

from fastapi import FastAPI

from parallax_core.api import (
    Answer,
    Draw,
    Drawn,
    LayerRange,
    PoolInfo,
    Request,
    RequestId,
    Row,
    Sampling,
    Stage,
    StageBatch,
    StageInfo,
    StagePlan,
)
from parallax_core.builtin.routing import LeastPendingTokens
from parallax_core.contracts.grammar import GrammarCompiler
from parallax_core.models.tokenizer import ModelTokenizer
from parallax_core.node.executor.local import LocalExecutor
from parallax_core.node.pipeline.engine import PipelineEngine
from parallax_core.node.pipeline.options import PipelineOptions
from parallax_core.node.routing.router import Router
from parallax_core.server.app import make_app
from parallax_core.server.bind import bind_socket
from parallax_core.server.body_messages import BodyReading
from parallax_core.server.body_reader import BodyReader, LocalReader
from parallax_core.server.drain import Drain
from parallax_core.server.file_limit import raise_limit
from parallax_core.server.loop_lag import watch_lag
from parallax_core.server.model_changes import ModelChanges
from parallax_core.server.options import ServerOptions
from parallax_core.server.run import Server, ServerSite, make_config
from parallax_core.server.served_models import ServedModels
from parallax_core.server.service import Service
from parallax_core.server.tokenizer_pool import TokenizerPool
from parallax_core.testing.sleep import SleepStage, describe_sleeper
from parallax_core.testing.toy import Toy, ToyStage
from tests.support.heads import drop_stored
from tests.unit.callbacks import Callbacks, watched
from tests.unit.server.letters import ALPHABET, Letters

STEP_S = {"sleep": 0.01, "toy": 0.002}
"""Seconds per step of the stages that compute nothing."""
TOYS = ("toy", "masked")
"""The kinds of servers over the toy model."""
MEMORY = 0.005
"""The share of free memory for pages of the real model: so small that it is soon full and stops growing."""
STORED, STORED_PAGES = 2000, 7
"""Prompts that the prefix cache of the `score` stage can hold, and the pages of each."""
TOP = tuple((token, -0.25 * token) for token in range(1, 21))
WORD = 260
"""A token that is a word by itself: " the", in the vocabulary of SmolLM2."""
MODEL = "bench"
MAX_BODY = 17 * 2**20
ROOT = Path(__file__).parents[1]
LAG_PERIOD_S = 0.005
"""The interval at which the lag of the event loop is measured, in seconds."""
LAG_EDGES_MS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)
"""The upper bounds of the lag histogram, in milliseconds."""


class MaskedText(Letters):
    """The tokenizer of the toy with a letter that ends answers, which grammars need."""

    stop_ids = frozenset({ALPHABET.index("!")})


def take_time(seconds: float, batch: StageBatch) -> float:
    """Return the seconds that a step takes, which are the same for every batch."""
    del batch
    return seconds


def sleep_and_forget(stage: ToyStage, batch: StageBatch) -> None:
    """Sleep, and clear the toy's record of calls, which is for tests and would grow without bound."""
    del batch
    stage.batches.clear()
    stage.forks.clear()
    time.sleep(STEP_S["toy"])


def open_stage(kind: str, folder: Path) -> Stage:
    """Open the stage of a kind of server."""
    if kind == "mlx":
        from parallax_backend_mlx.backend import MlxBackend

        return MlxBackend().open_stage(StagePlan(model=folder, memory_fraction=MEMORY))
    if kind in TOYS:
        stage = Toy(("full",), vocab=len(ALPHABET)).open(
            page_size=16, num_pages=400, context=1000, max_batch_tokens=256
        )
        stage.before_step = partial(sleep_and_forget, stage)
        return stage
    size = json.loads((folder / "config.json").read_text())["vocab_size"]
    if kind == "score":
        return ScoringSleeper(describe_scorer(size), partial(take_time, STEP_S["sleep"]))
    pools = (PoolInfo(kind="full", page_size=16, num_pages=4096),)
    info = dataclasses.replace(describe_sleeper(LayerRange(0, 8)), vocab_size=size, pools=pools)
    return SleepStage(info, partial(take_time, STEP_S["sleep"]))


def describe_scorer(vocab_size: int) -> StageInfo:
    """Return the description of a stage with pages for `STORED` prompts, or for one nearly as long as all of them."""
    pools = (PoolInfo(kind="full", page_size=16, num_pages=STORED * STORED_PAGES + 1000),)
    info = dataclasses.replace(describe_sleeper(LayerRange(0, 8)), vocab_size=vocab_size, pools=pools)
    context = STORED * STORED_PAGES * 16
    return dataclasses.replace(
        info, context_length=context, max_batch_tokens=8192, capabilities=frozenset({"logprobs"})
    )


class ScoringSleeper(SleepStage):
    """Always draws the same word, so that every token has text, with log-probabilities."""

    def _answer(self, rows: Sequence[Row]) -> tuple[Answer, ...]:
        draws = [output for row in rows for output in row.outputs if isinstance(output, Draw)]
        return tuple(score_draw(draw) for draw in draws)


def score_draw(draw: Draw) -> Drawn:
    """Return the word ``draw.count`` times, with made-up log-probabilities if requested."""
    words = (WORD,) * draw.count
    return Drawn(words) if draw.top < 0 else Drawn(words, (-0.25,) * draw.count, TOP[: draw.top])


def ignore_tokens(tokens: Sequence[int]) -> str:
    """Decode nothing."""
    del tokens
    return ""


@dataclasses.dataclass(frozen=True)
class Replica:
    """An engine with one stage, and its router."""

    engine: PipelineEngine
    router: Router


def make_replica(
    kind: str, folder: Path, decode: Callable[[Sequence[int]], str], grammars: GrammarCompiler | None = None
) -> Replica:
    """Return a replica of a kind of server, which follows grammars if it has a compiler."""
    options = PipelineOptions(grammars=grammars)
    engine = PipelineEngine(LocalExecutor([partial(open_stage, kind, folder)], options), decode, options)
    return Replica(engine, Router([engine], LeastPendingTokens(), lambda: engine.infos[0].context_length))


class Host:
    """The server with its benchmark routes."""

    def __init__(self, kind: str, folder: Path) -> None:
        self._kind, self._folder = kind, folder
        texts: dict[str, Callable[[], Any]] = {"toy": Letters, "masked": MaskedText}
        self._text = texts[kind]() if kind in texts else ModelTokenizer(folder)
        self._replicas = {"plain": make_replica(kind, folder, self._text.decode, self._text.grammars)}
        if kind == "sleep":
            self._replicas["mute"] = make_replica(kind, folder, ignore_tokens)
        self._names = count()
        self._lags: list[float] = []
        self._callbacks: Callbacks | None = None
        """None until lags are requested: watching callbacks would add to the costs that other benchmarks measure."""
        self._watches = contextlib.AsyncExitStack()

    async def serve(self) -> None:
        """Serve until the standard input ends."""
        raise_limit()
        sock, edge, main = bind_socket("127.0.0.1", 0), ServerOptions(max_body_bytes=MAX_BODY), self._replicas["plain"]
        reader = self._make_reader()
        await reader.start()
        reader.start_others()
        service = Service(MODEL, main.router, self._text, reader, find_max_length=lambda: main.engine.max_length)
        models = ServedModels.only(service)
        changes, drain = ModelChanges(models, None), Drain()
        app = make_app(models, changes, edge, drain)
        self._add_routes(app)
        for replica in self._replicas.values():
            await replica.router.start()
        server = Server(make_config(ServerSite(app, models, edge, drain, changes)))
        serving = asyncio.create_task(server.serve(sockets=[sock]))
        while not server.started:  # noqa: ASYNC110 -- there is no event for it
            await asyncio.sleep(0.01)
        print(sock.getsockname()[1], flush=True)
        async with contextlib.AsyncExitStack() as self._watches:
            await asyncio.to_thread(sys.stdin.read)
        server.should_exit = True
        await serving
        await reader.stop()
        for replica in self._replicas.values():
            await replica.router.stop()

    def _make_reader(self) -> BodyReading:
        """Return the reader of request bodies: processes, except for the toy."""
        if self._kind in TOYS:
            return LocalReader(BodyReader(self._text, MODEL))
        return TokenizerPool(str(self._folder), MODEL)

    def _add_routes(self, app: FastAPI) -> None:
        app.add_api_route("/bench/clock", read_clock)
        app.add_api_route("/bench/direct/{name}/{requests}/{tokens}", self.run_direct)
        app.add_api_route("/bench/state", self.read_state)
        app.add_api_route("/bench/lags", self.take_lags)
        app.add_api_route("/bench/empty", self.drop_stored)

    async def run_direct(self, name: str, requests: int, tokens: int, question: str) -> dict[str, float]:
        """Call an engine directly; return the seconds and the CPU seconds it took."""
        prompt, router = self._text.encode_chat([{"role": "user", "content": question}]), self._replicas[name].router

        async def read() -> None:
            name = RequestId(f"direct-{next(self._names)}")
            request = Request(id=name, prompt=prompt, max_tokens=tokens, sampling=Sampling(temperature=0))
            async for _ in router.submit(request):
                pass

        begun, used = time.perf_counter(), time.process_time()
        await asyncio.gather(*(read() for _ in range(requests)))
        return {"seconds": time.perf_counter() - begun, "cpu": time.process_time() - used}

    async def read_state(self) -> dict[str, Any]:
        """Return the objects the server holds for requests, and its memory in KiB."""
        gc.collect()
        engine, router = self._replicas["plain"].engine, self._replicas["plain"].router
        [stats], [replica] = router.stats(), router.describe()
        head = engine._head
        assert head is not None
        head.check()
        return {
            "health": router.health().state,
            "requests": stats.running + stats.waiting,
            "streams": len(engine._streams),
            "claims": replica.num_requests + replica.pending_tokens,
            "jobs": len(head._requests),
            "pages_used": [pool.used for pool in stats.pools],
            "stored": len(head._cache.stored.index),
            "tasks": len(asyncio.all_tasks()),
            "steps": stats.steps,
            "tokens": stats.output_tokens,
            "resident_kib": read_resident(),
        }

    def _note_lag(self, seconds: float) -> None:
        self._lags.append(seconds)

    async def take_lags(self) -> dict[str, Any]:
        """Return the lag of the event loop since the last call; the first call starts the measurement."""
        if self._callbacks is None:
            self._callbacks = self._watches.enter_context(watched())
            watching = asyncio.create_task(watch_lag(self._note_lag, LAG_PERIOD_S))
            self._watches.callback(watching.cancel)
        lags, self._lags = self._lags, []
        edges = [*LAG_EDGES_MS, math.inf]
        counts = Counter(next(edge for edge in edges if lag * 1000 <= edge) for lag in lags)
        longest_s, self._callbacks.longest_s = self._callbacks.longest_s, 0.0
        return {
            "worst_ms": round(max(lags, default=0) * 1000, 1),
            "longest_callback_cpu_ms": round(longest_s * 1000, 1),
            "of_what": self._callbacks.what.replace(f"{ROOT}/", "")[:300],
            "at_most_ms": {str(edge): counts[edge] for edge in edges},
        }

    async def drop_stored(self) -> dict[str, Any]:
        """Drop all cached prefixes on head and stage, and return the state afterwards."""
        head, driver = self._replicas["plain"].engine._head, self._replicas["plain"].engine._driver
        assert head is not None
        assert driver is not None
        drop_stored(head)
        driver.wake()
        await asyncio.sleep(0.5)
        return await self.read_state()


def read_clock() -> float:
    """Return the CPU seconds this process has used."""
    return time.process_time()


def read_resident() -> int:
    """Return the resident memory of this process, in KiB; Linux only."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:"))


@contextlib.contextmanager
def run_host(kind: str, folder: Path) -> Iterator[int]:
    """Run a host in its own process, and yield its port."""
    command = [sys.executable, "-m", "benchmarks.host", kind, str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield int(process.stdout.readline())
        process.communicate("", timeout=60)


async def fetch_json(port: int, path: str) -> Any:  # noqa: ANN401 -- any JSON
    """Return the JSON at a path of a host."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
    body = (await reader.read()).partition(b"\r\n\r\n")[2]
    writer.close()
    return json.loads(body)


def make_request(route: str, fields: dict[str, Any]) -> bytes:
    """Return the bytes of a POST request."""
    body = json.dumps({"model": MODEL, **fields}).encode()
    head = f"POST {route} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


if __name__ == "__main__":
    asyncio.run(Host(sys.argv[1], Path(sys.argv[2] if len(sys.argv) > 2 else ".")).serve())  # noqa: PLR2004

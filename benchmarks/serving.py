"""What HTTP and detokenization cost: processor time per token, and the rate through HTTP against the engine's own.

    python -m benchmarks.serving MODEL_FOLDER --out benchmarks/results/http.json

A process of its own serves 1 and 8 requests at once, over HTTP and from the engine called directly, in turns, so that
what else the machine does hits both. The client is another process. Twice: over a stage that only sleeps, with the
tokenizer of the model, and over the model on the MLX backend.

"cpu_us_per_token" is what the serving process takes with HTTP and the model's tokenizer, less what it takes when the
engine is called directly and nothing is decoded; the goal is 120. "ratio" is tokens per second through HTTP over those
of the engine called directly, with the same tokenizer; the goal is 0.95 at 8 requests. Medians over the turns.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

from benchmarks.record import describe_run, write_report
from parallax_core.api import PoolInfo, Request, RequestId, Sampling, Stage, StageBatch, StagePlan
from parallax_core.builtin.routing import LeastPendingTokens
from parallax_core.node.pipeline import PipelineEngine
from parallax_core.node.router import Router
from parallax_core.node.text import ModelText
from parallax_core.testing.sleep import SleepStage, describe_sleeper

GOAL_US, GOAL_RATIO = 120, 0.95
CONCURRENT = (1, 8)
STEP_S = 0.01
TOKENS = {"sleep": 150, "mlx": 40}
TURNS = 5
QUESTION = "Tell me a long story about a dragon and a fox."


def take_time(batch: StageBatch) -> float:
    """Return how long a step is to take."""
    del batch
    return STEP_S


def open_stage(kind: str, folder: Path) -> Stage:
    """Return the stage of a kind."""
    if kind == "mlx":
        from parallax_backend_mlx.backend import MlxBackend

        return MlxBackend().open_stage(StagePlan(model=folder))
    pools = (PoolInfo(kind="full", page_size=16, num_pages=4096),)
    size = json.loads((folder / "config.json").read_text())["vocab_size"]
    return SleepStage(dataclasses.replace(describe_sleeper(), vocab_size=size, pools=pools), take_time)


def make_router(kind: str, folder: Path, decode: Callable[[Sequence[int]], str]) -> Router:
    """Return what the server calls."""
    engine = PipelineEngine([partial(open_stage, kind, folder)], decode)
    return Router([engine], LeastPendingTokens(), lambda: engine.infos[0].context_length)


def ignore_tokens(tokens: Sequence[int]) -> str:
    """Decode nothing."""
    del tokens
    return ""


class Bench:
    """The serving process: answers over HTTP, and runs the same requests without it when it is told to."""

    def __init__(self, kind: str, folder: Path) -> None:
        self._kind = kind
        self._text = ModelText(folder)
        self.engine = make_router(kind, folder, self._text.decode)
        self._mute = make_router(kind, folder, ignore_tokens) if kind == "sleep" else None
        self._names = count()

    async def serve(self) -> None:
        """Serve until the standard input ends."""
        from parallax_core.server.app import make_app
        from parallax_core.server.edge import Edge
        from parallax_core.server.gate import Gate
        from parallax_core.server.run import Server, Site, _configure, bind_socket
        from parallax_core.server.served import Served

        sock, edge = bind_socket("127.0.0.1", 0), Edge()
        app = make_app(Served("bench", self.engine, self._text), edge)
        app.add_api_route("/cpu", read_clock)
        app.add_api_route("/direct/{what}/{requests}", self.run_direct)
        for engine in filter(None, (self.engine, self._mute)):
            await engine.start()
        server = Server(_configure(Site(app, self.engine, edge, Gate())))
        serving = asyncio.create_task(server.serve(sockets=[sock]))
        while not server.started:  # noqa: ASYNC110 -- nobody tells
            await asyncio.sleep(0.01)
        print(sock.getsockname()[1], flush=True)
        await asyncio.to_thread(sys.stdin.read)
        server.should_exit = True
        await serving
        for engine in filter(None, (self.engine, self._mute)):
            await engine.stop()

    async def run_direct(self, what: str, requests: int) -> dict[str, float]:
        """Call the engine directly; return the seconds and the processor seconds that took."""
        engine = self._mute if what == "mute" else self.engine
        assert engine is not None
        prompt = self._text.encode_chat([{"role": "user", "content": QUESTION}])

        async def read() -> None:
            request = Request(
                id=RequestId(f"direct-{next(self._names)}"),
                prompt=prompt,
                max_tokens=TOKENS[self._kind],
                sampling=Sampling(temperature=0),
            )
            async for _ in engine.submit(request):
                pass

        return await clock(partial(gather, read, requests), time.process_time)


def read_clock() -> float:
    """Return the processor seconds of this process so far."""
    return time.process_time()


async def gather(work: Callable[[], Awaitable[None]], times: int) -> None:
    """Do something several times at once."""
    await asyncio.gather(*(work() for _ in range(times)))


async def clock(work: Callable[[], Awaitable[None]], cpu: Callable[[], float]) -> dict[str, float]:
    """Return the seconds and the processor seconds something takes."""
    begun, used = time.perf_counter(), cpu()
    await work()
    return {"seconds": time.perf_counter() - begun, "cpu": cpu() - used}


class Client:
    """Asks the serving process, and counts what comes, as cheaply as it can."""

    def __init__(self, port: int, tokens: int) -> None:
        self._port = port
        fields = {"model": "bench", "stream": True, "temperature": 0, "ignore_eos": True, "max_tokens": tokens}
        self._body = json.dumps({**fields, "messages": [{"role": "user", "content": QUESTION}]}).encode()

    async def stream(self) -> None:
        """Read one answer to its end."""
        head = (
            "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(self._body)}\r\n\r\n"
        )
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        writer.write(head.encode() + self._body)
        last = b""
        while b"[DONE]" not in last:
            piece = await reader.read(2**16)
            assert piece, "the answer ended before it was over"
            last = last[-16:] + piece
        writer.close()
        await writer.wait_closed()

    async def fetch(self, path: str) -> Any:  # noqa: ANN401 -- whatever it is
        """Return what a path shows."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
        body = (await reader.read()).partition(b"\r\n\r\n")[2]
        writer.close()
        return json.loads(body)

    async def run_http(self, requests: int) -> dict[str, float]:
        """Return the seconds and the server's processor seconds of several answers at once."""
        used = await self.fetch("/cpu")
        found = await clock(partial(gather, self.stream, requests), float)
        return found | {"cpu": await self.fetch("/cpu") - used}


async def compare(port: int, kind: str, requests: int) -> dict[str, Any]:
    """Return what HTTP costs with so many requests at once."""
    client, tokens = Client(port, TOKENS[kind]), TOKENS[kind] * requests
    kinds = ["plain", "mute"] if kind == "sleep" else ["plain"]
    runs: dict[str, list[dict[str, float]]] = {"http": [], **{each: [] for each in kinds}}
    for turn in range(TURNS + 1):
        for each, found in runs.items():
            run = await (client.run_http(requests) if each == "http" else client.fetch(f"/direct/{each}/{requests}"))
            if turn:  # the first one warms up
                found.append(run)
    ratios = [plain["seconds"] / http["seconds"] for http, plain in zip(runs["http"], runs["plain"], strict=True)]
    result = {
        "stage": kind,
        "requests": requests,
        "tokens": tokens,
        "http_tokens_per_s": round(tokens / statistics.median(run["seconds"] for run in runs["http"]), 1),
        "direct_tokens_per_s": round(tokens / statistics.median(run["seconds"] for run in runs["plain"]), 1),
        "ratio": round(statistics.median(ratios), 3),
    }
    if kind == "sleep":
        cpu = {each: statistics.median(run["cpu"] for run in found) / tokens * 1e6 for each, found in runs.items()}
        result["cpu_us_per_token"] = round(cpu["http"] - cpu["mute"], 1)
        result["of_these_detokenizing"] = round(cpu["plain"] - cpu["mute"], 1)
        result["engine_us_per_token"] = round(cpu["mute"], 1)
    return result


def measure(kind: str, folder: Path) -> list[dict[str, Any]]:
    """Compare in a serving process of its own."""
    command = [sys.executable, "-m", "benchmarks.serving", str(folder), "--serve", kind]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        port = int(process.stdout.readline())
        found = [asyncio.run(compare(port, kind, requests)) for requests in CONCURRENT]
        process.communicate("", timeout=30)
    return found


def main() -> None:
    """Measure, print, and write with what a number needs beside it."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("model", type=Path, help="a model folder")
    parser.add_argument("--serve", help="be the serving process, with this kind of stage")
    parser.add_argument("--kinds", nargs="+", default=["sleep", "mlx"])
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.serve:
        asyncio.run(Bench(options.serve, options.model).serve())
        return
    found = {
        "runs": [run for kind in options.kinds for run in measure(kind, options.model)],
        "goals": {"cpu_us_per_token": GOAL_US, "ratio": GOAL_RATIO},
        **describe_run(["benchmarks.serving", options.model.name], ["fastapi", "uvicorn", "h11", "tokenizers"]),
    }
    print(json.dumps(found, indent=2))
    write_report(options.out, found)


if __name__ == "__main__":
    main()

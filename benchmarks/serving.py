"""Measures the cost of HTTP and detokenization: CPU time per token, and throughput compared with the bare engine.

    python -m benchmarks.serving MODEL_FOLDER --out benchmarks/results/http.json

A server process runs 1 and 8 concurrent requests, over HTTP and by calling the engine directly, in turns, so that other
load on the machine affects both. The client is another process. This runs twice: over a stage that only sleeps, with
the tokenizer of the model, and over the model on the MLX backend.

"cpu_us_per_token" is the CPU time of the server process with HTTP and the model's tokenizer, less that of calling the
engine directly without decoding; the goal is 120. "ratio" is the tokens per second over HTTP divided by those of the
engine called directly, with the same tokenizer; the goal is 0.95 at 8 requests. Figures are medians over the turns.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import time
import urllib.parse
from pathlib import Path
from typing import Any

from benchmarks.host import fetch_json, make_request, run_host
from benchmarks.record import describe_run, write_report

GOAL_US, GOAL_RATIO = 120, 0.95
CONCURRENT = (1, 8)
TOKENS = {"sleep": 300, "mlx": 64}
TURNS = 5
QUESTION = "Tell me a long story about a dragon and a fox."


class Client:
    """A client of the server process that uses as little CPU time as possible."""

    def __init__(self, port: int, tokens: int) -> None:
        self._port = port
        self._tokens = tokens
        fields = {"stream": True, "temperature": 0, "ignore_eos": True, "max_tokens": tokens}
        messages = [{"role": "user", "content": QUESTION}]
        self._request = make_request("/v1/chat/completions", {**fields, "messages": messages})

    async def stream(self) -> None:
        """Read one answer to its end."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        writer.write(self._request)
        last = b""
        while b"[DONE]" not in last:
            piece = await reader.read(2**16)
            assert piece, "the answer ended before it was over"
            last = last[-16:] + piece
        writer.close()
        await writer.wait_closed()

    async def run_http(self, requests: int) -> dict[str, float]:
        """Return the seconds and the server's CPU seconds of concurrent requests over HTTP."""
        used, begun = await fetch_json(self._port, "/bench/clock"), time.perf_counter()
        await asyncio.gather(*(self.stream() for _ in range(requests)))
        seconds = time.perf_counter() - begun
        return {"seconds": seconds, "cpu": await fetch_json(self._port, "/bench/clock") - used}

    async def run_direct(self, name: str, requests: int) -> dict[str, float]:
        """Return the seconds and the server's CPU seconds of concurrent requests to the engine itself."""
        question = urllib.parse.quote(QUESTION)
        path = f"/bench/direct/{name}/{requests}/{self._tokens}?question={question}"
        found: dict[str, float] = await fetch_json(self._port, path)
        return found


async def compare(port: int, kind: str, requests: int) -> dict[str, Any]:
    """Return the cost of HTTP with ``requests`` concurrent requests."""
    client, tokens = Client(port, TOKENS[kind]), TOKENS[kind] * requests
    kinds = ["plain", "mute"] if kind == "sleep" else ["plain"]
    runs: dict[str, list[dict[str, float]]] = {"http": [], **{each: [] for each in kinds}}
    for turn in range(TURNS + 1):
        for each, found in runs.items():
            run = await (client.run_http(requests) if each == "http" else client.run_direct(each, requests))
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
    """Compare on a new server process, and return the figures for each number of requests."""
    with run_host(kind, folder) as port:
        return [asyncio.run(compare(port, kind, requests)) for requests in CONCURRENT]


def main() -> None:
    """Measure, print, and write the report."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("model", type=Path, help="a model folder")
    parser.add_argument("--kinds", nargs="+", default=["sleep", "mlx"])
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    found = {
        "runs": [run for kind in options.kinds for run in measure(kind, options.model)],
        "goals": {"cpu_us_per_token": GOAL_US, "ratio": GOAL_RATIO},
        **describe_run(["benchmarks.serving", options.model.name], ["fastapi", "uvicorn", "h11", "tokenizers"]),
    }
    print(json.dumps(found, indent=2))
    write_report(options.out, found)


if __name__ == "__main__":
    main()

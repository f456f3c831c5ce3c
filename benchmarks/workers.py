"""Compares the tokens of a model served by worker processes with those of a single process.

    python -m benchmarks.workers MODEL --out benchmarks/results/workers.json [--only workers | mixed]

The model is served by one process, and by 2 and 3 worker processes: over ipc sockets, started by the server; and over
encrypted TCP, started by hand as on other machines. All compute in float32. Each gets the same prompts, greedy and
sampled with a seed; every token must be equal. ``mixed`` are pipelines whose stages use different backends, in both
orders: for more prompts, greedy, they must give the tokens of one process with one backend. Results already in the
report are not measured again.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import operator
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.request import Request, urlopen

from benchmarks.record import describe_run, read_report, write_report

PROMPTS = (
    "The capital of France is",
    "def fibonacci(n):",
    "Once upon a time there was",
    "1, 2, 3, 5, 8,",
    "Water boils at",
    "Dear Sir or Madam,",
)
MORE_PROMPTS = (
    *PROMPTS,
    "The three primary colours are",
    "To be, or not to be,",
    "import numpy as np",
    "SELECT name FROM users WHERE",
    "The mitochondria is the",
    "My favourite recipe for bread begins with",
    "In 1969, humans first",
    "The opposite of hot is",
    "Roses are red,",
    "A haiku about the sea:",
    "The square root of 144 is",
    "She opened the door and saw",
    "Python is a programming language that",
    "Good morning! How",
)
GREEDY: dict[str, Any] = {"temperature": 0}
START_S = 300.0
COMMAND = (sys.executable, "-m", "parallax_core")
Question = tuple[str, dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Group:
    """Ways to serve that must give the same answers."""

    ways: dict[str, tuple[str, int, str]]
    """By name: the backends, the number of stages, and ``ipc``, ``tcp`` or nothing; the first way is the reference."""
    questions: tuple[Question, ...]


GROUPS = {
    "workers": Group(
        ways={
            "one process": ("mlx", 1, ""),
            "2 workers over ipc": ("mlx", 2, "ipc"),
            "3 workers over ipc": ("mlx", 3, "ipc"),
            "2 workers over tcp with keys": ("mlx", 2, "tcp"),
            "3 workers over tcp with keys": ("mlx", 3, "tcp"),
        },
        questions=tuple(
            (prompt, {"max_tokens": 24, **sampling})
            for prompt in PROMPTS
            for sampling in (GREEDY, {"temperature": 0.8, "top_p": 0.9, "seed": 7})
        ),
    ),
    "mixed": Group(
        ways={
            "mlx": ("mlx", 1, ""),
            "torch": ("torch", 1, ""),
            "mlx, then torch": ("mlx,torch", 2, "ipc"),
            "torch, then mlx": ("torch,mlx", 2, "ipc"),
        },
        questions=tuple((prompt, {"max_tokens": 32, **GREEDY}) for prompt in MORE_PROMPTS),
    ),
}


@contextmanager
def process(
    words: Sequence[str], environment: dict[str, str], stdout: int | None = None
) -> Iterator[subprocess.Popen[str]]:
    """Run a command of Parallax, and interrupt it at the end."""
    with subprocess.Popen([*COMMAND, *words], env=environment, text=True, stdout=stdout) as running:
        try:
            yield running
        finally:
            running.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                running.wait(10)
            running.kill()


@contextmanager
def service(model: str, way: tuple[str, int, str]) -> Iterator[str]:
    """Serve the model in one way, and yield the URL."""
    backend, num_stages, road = way
    words = ["serve", model, "--backend", backend, "--port", "0", "--dtype", "float32", "--stages", str(num_stages)]
    environment = dict(os.environ)
    with contextlib.ExitStack() as stack:
        if road == "tcp":
            home = Path(stack.enter_context(TemporaryDirectory()))
            environment["PARALLAX_HOME"] = str(home)
            address = f"tcp://127.0.0.1:{find_port()}"
            words += ["--listen", address]
            for number in range(num_stages):
                join = ["worker", "--connect", address, "--backend", backend, "--node", f"node/{number}"]
                join += ["--allow-model", model]
                stack.enter_context(process(join, environment))
        server = stack.enter_context(process(words, environment, stdout=subprocess.PIPE))
        assert server.stdout is not None
        line = server.stdout.readline()
        assert line.startswith("ready "), "the server did not start; its error is above"
        yield line.split()[1]


def find_port() -> int:
    """Return a free port."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


def ask(url: str, question: Question) -> list[str]:
    """Return the tokens that follow a prompt, each as text."""
    prompt, fields = question
    with urlopen(f"{url}/models", timeout=START_S) as response:  # noqa: S310 -- our own server
        model = json.load(response)["data"][0]["id"]
    body = {"model": model, "prompt": prompt, "logprobs": 0, **fields}
    headers = {"Content-Type": "application/json"}
    request = Request(f"{url}/completions", json.dumps(body).encode(), headers)  # noqa: S310 -- the same
    with urlopen(request, timeout=START_S) as response:  # noqa: S310 -- the same
        answer = json.load(response)["choices"][0]
    return list(answer["logprobs"]["tokens"])


def measure(model: str, group: Group, way: str) -> dict[str, Any]:
    """Serve the model in one way, and return the answers and times."""
    begun = time.monotonic()
    with service(model, group.ways[way]) as url, ThreadPoolExecutor(len(group.questions)) as pool:
        ready = time.monotonic()
        answers = list(pool.map(partial(ask, url), group.questions))
        ended = time.monotonic()
    return {"start_s": round(ready - begun, 1), "answer_s": round(ended - ready, 1), "answers": answers}


def compare(model: str, group: Group, ways: dict[str, Any]) -> Iterator[str]:
    """Measure the ways missing from ``ways``, and yield the name of each way once it is there."""
    for way in group.ways:
        if way not in ways:
            ways[way] = measure(model, group, way)
            right = ways[next(iter(group.ways))]["answers"]
            ways[way]["equal"] = sum(map(operator.eq, ways[way]["answers"], right))
        yield way


def main() -> None:
    """Measure what the report lacks, print, and write the report."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("model", help="a model folder")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--only", choices=GROUPS)
    options = parser.parse_args()
    report = read_report(options.out)
    for name in [options.only] if options.only else GROUPS:
        ways = report.get(name, {}).get("ways", {})
        known = len(ways)
        for way in compare(options.model, GROUPS[name], ways):
            if len(ways) > known:
                run = describe_run(["benchmarks.workers", Path(options.model).name], ["pyzmq", "mlx", "torch"])
                report[name] = {"ways": ways, **run}
                write_report(options.out, report)
            answers = ways[way]
            print(f"{way}: {answers['equal']} of {len(answers['answers'])} answers are the right ones", flush=True)
        assert all(way["equal"] == len(way["answers"]) for way in ways.values())


if __name__ == "__main__":
    main()

"""Does a model whose stages are worker processes give the tokens it gives in one process?

    python -m benchmarks.workers MODEL --out benchmarks/results/workers.json

The model is served by one process, and by 2 and 3 worker processes: over sockets of this machine, started by the
server; and over TCP with keys, started by hand as on other machines. All compute in float32. Each is asked the same
prompts, greedily and with a seed; every token must be the same. What a run has found is kept, and not measured again.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
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
TOKENS = 24
SAMPLINGS: tuple[dict[str, Any], ...] = ({"temperature": 0}, {"temperature": 0.8, "top_p": 0.9, "seed": 7})
START_S = 300.0
COMMAND = (sys.executable, "-m", "parallax_core")
WAYS: dict[str, tuple[int, str]] = {
    "one process": (1, ""),
    "2 workers over ipc": (2, "ipc"),
    "3 workers over ipc": (3, "ipc"),
    "2 workers over tcp with keys": (2, "tcp"),
    "3 workers over tcp with keys": (3, "tcp"),
}


@contextmanager
def process(
    words: Sequence[str], environment: dict[str, str], stdout: int | None = None
) -> Iterator[subprocess.Popen[str]]:
    """Run a command of Parallax, and interrupt it in the end."""
    with subprocess.Popen([*COMMAND, *words], env=environment, text=True, stdout=stdout) as running:
        try:
            yield running
        finally:
            running.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                running.wait(10)
            running.kill()


@contextmanager
def served(model: str, num_stages: int, road: str) -> Iterator[str]:
    """Serve the model, and yield the URL."""
    words = ["serve", model, "--backend", "mlx", "--port", "0", "--dtype", "float32", "--stages", str(num_stages)]
    environment = dict(os.environ)
    with contextlib.ExitStack() as stack:
        if road == "tcp":
            home = Path(stack.enter_context(TemporaryDirectory()))
            environment["PARALLAX_HOME"] = str(home)
            subprocess.run([*COMMAND, "keys", "new"], env=environment, check=True, stdout=subprocess.DEVNULL)
            address = f"tcp://127.0.0.1:{find_port()}"
            words += ["--listen", address]
            for number in range(num_stages):
                join = ["worker", "--connect", address, "--backend", "mlx", "--node", f"node/{number}"]
                stack.enter_context(process(join, environment))
        server = stack.enter_context(process(words, environment, stdout=subprocess.PIPE))
        assert server.stdout is not None
        line = server.stdout.readline()
        assert line.startswith("ready "), "the server did not start; it says why above"
        yield line.split()[1]


def find_port() -> int:
    """Return a free port."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


def ask(url: str, question: tuple[str, dict[str, Any]]) -> list[str]:
    """Return the tokens that follow a prompt, each as text."""
    prompt, sampling = question
    with urlopen(f"{url}/models", timeout=START_S) as response:  # noqa: S310 -- our own server
        model = json.load(response)["data"][0]["id"]
    body = {"model": model, "prompt": prompt, "max_tokens": TOKENS, "logprobs": 0, **sampling}
    headers = {"Content-Type": "application/json"}
    request = Request(f"{url}/completions", json.dumps(body).encode(), headers)  # noqa: S310 -- the same
    with urlopen(request, timeout=START_S) as response:  # noqa: S310 -- the same
        answer = json.load(response)["choices"][0]
    return list(answer["logprobs"]["tokens"])


def measure(model: str, way: str) -> dict[str, Any]:
    """Return what one way of serving answers."""
    num_stages, road = WAYS[way]
    questions = [(prompt, sampling) for prompt in PROMPTS for sampling in SAMPLINGS]
    begun = time.monotonic()
    with served(model, num_stages, road) as url, ThreadPoolExecutor(len(questions)) as pool:
        ready = time.monotonic()
        answers = list(pool.map(partial(ask, url), questions))
        ended = time.monotonic()
    return {"start_s": round(ready - begun, 1), "answer_s": round(ended - ready, 1), "answers": answers}


def main() -> None:
    """Measure what is not known yet, print, and write with what a number needs beside it."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("model", help="a model folder")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    ways: dict[str, Any] = read_report(options.out).get("ways", {})
    for way in WAYS:
        if way not in ways:
            ways[way] = measure(options.model, way)
            right = ways["one process"]["answers"]
            pairs = zip(ways[way]["answers"], right, strict=True)
            ways[way]["equal"] = sum(answer == whole for answer, whole in pairs)
            command = ["benchmarks.workers", Path(options.model).name]
            write_report(options.out, {"ways": ways, **describe_run(command, ["pyzmq", "mlx"])})
        print(f"{way}: {ways[way]['equal']} of {len(ways[way]['answers'])} answers are those of one process")
    assert all(way["equal"] == len(way["answers"]) for way in ways.values())


if __name__ == "__main__":
    main()

"""The sides of a comparison: servers behind HTTP and libraries called directly; only one side runs at a time.

Each side is its own process group, which is stopped by a signal while it is not its turn.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import statistics
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol

from benchmarks.servers import cluster, running
from parallax_bench.client import Target, send_requests
from parallax_bench.request import BenchRequest
from parallax_bench.summary import percentile, summarize
from tests.support.namespaces import Process
from tests.support.zmq_nodes import find_tcp_port

START_TIMEOUT_S = 300
Figures = dict[str, float]


@dataclass(frozen=True)
class Request:
    """A prompt as tokens, the tokens of its answer, and further fields of the API."""

    prompt: Sequence[int]
    tokens: int
    fields: Mapping[str, Any] = field(default_factory=dict)


class Side(Protocol):
    """One of the sides of a comparison."""

    about: Mapping[str, Any]
    """Its description: versions, threads, dtype."""
    group: int
    """Its process group."""

    def generate(self, requests: Sequence[Request], at_once: int) -> Figures:
        """Generate greedy tokens after each prompt, ``at_once`` at a time, past any end-of-text.

        ``tokens_per_s`` counts the tokens of all answers, from the first request to the end of the last answer;
        ``ttft_ms`` and ``itl_ms`` are medians of the time to the first token and of the time between tokens, and
        ``itl_p99`` is the 99th percentile of the latter.
        """


class HttpSide:
    """A server behind HTTP."""

    def __init__(self, url: str, model: str, group: int, about: Mapping[str, Any]) -> None:
        self._target = Target(url=url, model=model)
        self.group, self.about = group, about

    def generate(self, requests: Sequence[Request], at_once: int) -> Figures:
        tasks = [
            BenchRequest(
                route="/v1/completions", body={"prompt": list(each.prompt), "max_tokens": each.tokens, **each.fields}
            )
            for each in requests
        ]
        outcomes = asyncio.run(send_requests(self._target, tasks, [0.0] * len(tasks), at_once, lambda _: None))
        found = summarize(outcomes, {})
        wanted = sum(each.tokens for each in requests)
        if found.errors or found.ttft_ms is None or found.output_tokens != wanted:
            raise RuntimeError(f"got {found.output_tokens} of {wanted} tokens: {found.errors}")
        figures = {"tokens_per_s": found.output_tokens_per_s, "ttft_ms": found.ttft_ms.p50}
        return figures if found.itl_ms is None else {**figures, "itl_ms": found.itl_ms.p50, "itl_p99": found.itl_ms.p99}


class DirectSide:
    """A library, called by a process of ``direct.py``."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._input, self._output, self.group = process.stdin, process.stdout, process.pid
        self.about = self._read()

    def generate(self, requests: Sequence[Request], at_once: int) -> Figures:
        """Have the process call the library with all prompts in one batch; see `Side.generate`."""
        assert at_once == len(requests), "there is one batch"
        prompts, tokens = [list(each.prompt) for each in requests], requests[0].tokens
        print(json.dumps({"prompts": prompts, "tokens": tokens}), file=self._input, flush=True)
        times = self._read()
        figures = {"tokens_per_s": len(prompts) * tokens / times[-1], "ttft_ms": 1000 * times[0]}
        gaps = sorted(1000 * (after - before) for before, after in pairwise(times))
        return {**figures, "itl_ms": statistics.median(gaps), "itl_p99": percentile(gaps, 99)} if gaps else figures

    def _read(self) -> Any:
        line = self._output.readline()
        if not line:
            raise RuntimeError("the process of the library has ended")
        return json.loads(line)


@contextmanager
def run_turn(side: Side) -> Iterator[None]:
    os.killpg(side.group, signal.SIGCONT)
    try:
        yield
    finally:
        os.killpg(side.group, signal.SIGSTOP)


@contextmanager
def serve(
    command: Sequence[str], model: str, variables: Mapping[str, str], about: Mapping[str, Any]
) -> Iterator[HttpSide]:
    """Run a server by its command without the port; ``model`` is the name by which it serves its model."""
    port = find_tcp_port()
    url = f"http://127.0.0.1:{port}"
    with running([*command, "--port", str(port)], variables=variables) as process:
        try:
            wait_for(url, process)
            yield HttpSide(url, model, process.popen.pid, {**about, **read_device(url)})
        finally:
            os.killpg(process.popen.pid, signal.SIGCONT)


def wait_for(url: str, process: Process) -> None:
    until = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < until and process.popen.poll() is None:
        status = read_status(f"{url}/health")
        if status == 200 or (status == 404 and read_status(f"{url}/v1/models") == 200):
            return
        time.sleep(0.3)
    said = "\n".join(line for _, line in process.lines[-40:])
    raise RuntimeError(f"no server answers at {url}: {said}")


def read_status(url: str) -> int:
    try:
        with urllib.request.urlopen(url) as response:
            return int(response.status)
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return 0


def read_device(url: str) -> dict[str, str]:
    with suppress(OSError, KeyError, ValueError):
        return {"device": cluster(url)["replicas"][0]["stages"][0]["device"]}
    return {}


@contextmanager
def call_directly(python: str, *arguments: str) -> Iterator[DirectSide]:
    command = [python, "-P", str(Path(__file__).with_name("direct.py")), *arguments]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(command, text=True, start_new_session=True, **pipes) as process:  # type: ignore[call-overload]
        try:
            yield DirectSide(process)
        finally:
            os.killpg(process.pid, signal.SIGKILL)

"""The two sides of a comparison: servers asked over HTTP, and libraries called directly, one of them running at a time.

Each side is a group of processes of its own, which is stopped by a signal while it is not its turn: a server that
waits by spinning would take its time from the other.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import IO, Any, Protocol

from parallax_bench.client import Target, send_requests
from parallax_bench.request import BenchRequest
from parallax_bench.summary import summarize

START_TIMEOUT_S = 300
OK = 200
MOST_CACHED = 0.1
"""Of the tokens of prompts: beginnings that happen to be those of earlier ones."""
Figures = dict[str, float]


class Side(Protocol):
    """One of two that are compared."""

    about: Mapping[str, Any]
    """What it is: versions, threads, dtype."""
    group: int
    """Its group of processes."""

    def generate(self, prompts: Sequence[Sequence[int]], tokens: int) -> Figures:
        """Return the figures of ``tokens`` greedy tokens after each of ``prompts``, all at once, whatever ends a text.

        ``tokens_per_s`` counts those of all answers, from the first question to the last answer; ``ttft_ms`` and
        ``itl_ms`` are medians of the time to the first token and of that between two.
        """


class HttpSide:
    """A server."""

    def __init__(self, url: str, model: str, group: int, about: Mapping[str, Any]) -> None:
        self.target, self.group, self.about = Target(url=url, model=model), group, about

    def generate(self, prompts: Sequence[Sequence[int]], tokens: int) -> Figures:
        """Ask over HTTP; see `Side.generate`."""
        tasks = [
            BenchRequest(route="/v1/completions", body={"prompt": list(prompt), "max_tokens": tokens})
            for prompt in prompts
        ]
        outcomes = asyncio.run(send_requests(self.target, tasks, [0.0] * len(tasks), 0, lambda _: None))
        found = summarize(outcomes, {})
        wanted = tokens * len(prompts)
        cached = found.cached_tokens / max(found.prompt_tokens, 1)
        if found.errors or found.ttft_ms is None or found.output_tokens != wanted or cached > MOST_CACHED:
            said = f"{found.output_tokens} of {wanted} tokens came, {cached:.0%} were cached: {found.errors}"
            raise RuntimeError(said)
        figures = {"tokens_per_s": found.output_tokens_per_s, "ttft_ms": found.ttft_ms.p50}
        return figures if found.itl_ms is None else {**figures, "itl_ms": found.itl_ms.p50, "itl_p99": found.itl_ms.p99}


class DirectSide:
    """A process of ``direct.py``."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._given, self._said, self.group = process.stdin, process.stdout, process.pid
        self.about = self._read()

    def generate(self, prompts: Sequence[Sequence[int]], tokens: int) -> Figures:
        """Call the library; see `Side.generate`."""
        print(json.dumps({"prompts": list(map(list, prompts)), "tokens": tokens}), file=self._given, flush=True)
        times = self._read()
        figures = {"tokens_per_s": len(prompts) * tokens / times[-1], "ttft_ms": 1000 * times[0]}
        gaps = [1000 * (after - before) for before, after in pairwise(times)]
        return {**figures, "itl_ms": statistics.median(gaps)} if gaps else figures

    def _read(self) -> Any:  # noqa: ANN401 -- whatever JSON it wrote
        line = self._said.readline()
        if not line:
            raise RuntimeError("the library's process is over")
        return json.loads(line)


@contextlib.contextmanager
def run_turn(side: Side) -> Iterator[None]:
    """Let a side run for a while."""
    os.killpg(side.group, signal.SIGCONT)
    try:
        yield
    finally:
        os.killpg(side.group, signal.SIGSTOP)


@contextlib.contextmanager
def serve(
    command: Sequence[str], model: str, variables: Mapping[str, str], about: Mapping[str, Any]
) -> Iterator[HttpSide]:
    """Run a server until it is no longer needed, by its command less the port; ``model`` is what it calls its model."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = int(sock.getsockname()[1])
    url = f"http://127.0.0.1:{port}"
    with tempfile.TemporaryFile() as log, _heeding_end():
        process = subprocess.Popen(
            [*command, "--port", str(port)],
            stdout=log,
            stderr=log,
            env={**os.environ, **variables},
            start_new_session=True,
        )
        with _ending(process):
            _wait_for(f"{url}/health", process, log)
            yield HttpSide(url, model, process.pid, {**about, **_read_device(url)})


@contextlib.contextmanager
def call_directly(python: str, *arguments: str) -> Iterator[DirectSide]:
    """Run ``direct.py`` in an environment until it is no longer needed."""
    script = str(Path(__file__).with_name("direct.py"))
    command = [python, "-P", script, *arguments]
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    with _heeding_end(), process, _ending(process):
        yield DirectSide(process)


@contextlib.contextmanager
def _heeding_end() -> Iterator[None]:
    """Let a request to end this process end it in order: what it started would go on."""

    def leave(number: int, _frame: FrameType | None) -> None:
        sys.exit(128 + number)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextlib.contextmanager
def _ending(process: subprocess.Popen[Any]) -> Iterator[None]:
    """End the group of a process afterwards, stopped or not."""
    try:
        yield
    finally:
        for last_word in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, last_word)
                os.killpg(process.pid, signal.SIGCONT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(15)


def _wait_for(url: str, process: subprocess.Popen[bytes], log: IO[bytes]) -> None:
    until = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < until and process.poll() is None:
        with contextlib.suppress(OSError), urllib.request.urlopen(url) as response:  # noqa: S310 -- our own address
            if response.status == OK:
                return
        time.sleep(0.3)
    log.seek(0)
    raise RuntimeError(f"no server answers at {url}: {log.read()[-2000:].decode(errors='replace')}")


def _read_device(url: str) -> dict[str, str]:
    """Return what a server of ours says it computes on."""
    with contextlib.suppress(OSError), urllib.request.urlopen(f"{url}/v1/cluster") as response:  # noqa: S310 -- our own
        [replica] = json.load(response)["replicas"]
        return {"device": replica["stages"][0]["device"]}
    return {}

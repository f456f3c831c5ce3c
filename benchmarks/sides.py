"""The two sides of a comparison: servers behind HTTP and libraries called directly; only one side runs at a time.

Each side is its own process group, which is stopped by a signal while it is not its turn: a server that spins while it
waits would take CPU time from the other.
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
from parallax_bench.summary import percentile, summarize

START_TIMEOUT_S = 300
OK = 200
MOST_CACHED = 0.1
"""The largest share of prompt tokens that may come from the prefix cache by chance."""
Figures = dict[str, float]


class Side(Protocol):
    """One of the two sides of a comparison."""

    about: Mapping[str, Any]
    """Its description: versions, threads, dtype."""
    group: int
    """Its process group."""

    def generate(self, prompts: Sequence[Sequence[int]], tokens: int) -> Figures:
        """Generate ``tokens`` greedy tokens after each prompt, all at once, past any end-of-text; return the figures.

        ``tokens_per_s`` counts the tokens of all answers, from the first request to the end of the last answer;
        ``ttft_ms`` and ``itl_ms`` are medians of the time to the first token and of the time between tokens, and
        ``itl_p99`` is the 99th percentile of the latter.
        """


class HttpSide:
    """A server behind HTTP."""

    def __init__(self, url: str, model: str, group: int, about: Mapping[str, Any]) -> None:
        self.target, self.group, self.about = Target(url=url, model=model), group, about

    def generate(self, prompts: Sequence[Sequence[int]], tokens: int) -> Figures:
        """Send the requests over HTTP; see `Side.generate`."""
        tasks = [
            BenchRequest(route="/v1/completions", body={"prompt": list(prompt), "max_tokens": tokens})
            for prompt in prompts
        ]
        outcomes = asyncio.run(send_requests(self.target, tasks, [0.0] * len(tasks), 0, lambda _: None))
        found = summarize(outcomes, {})
        wanted = tokens * len(prompts)
        cached = found.cached_tokens / max(found.prompt_tokens, 1)
        if found.errors or found.ttft_ms is None or found.output_tokens != wanted or cached > MOST_CACHED:
            message = f"got {found.output_tokens} of {wanted} tokens, {cached:.0%} cached: {found.errors}"
            raise RuntimeError(message)
        figures = {"tokens_per_s": found.output_tokens_per_s, "ttft_ms": found.ttft_ms.p50}
        return figures if found.itl_ms is None else {**figures, "itl_ms": found.itl_ms.p50, "itl_p99": found.itl_ms.p99}


class DirectSide:
    """A library, called by a process of ``direct.py``."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._input, self._output, self.group = process.stdin, process.stdout, process.pid
        self.about = self._read()

    def generate(self, prompts: Sequence[Sequence[int]], tokens: int) -> Figures:
        """Have the process call the library; see `Side.generate`."""
        print(json.dumps({"prompts": list(map(list, prompts)), "tokens": tokens}), file=self._input, flush=True)
        times = self._read()
        figures = {"tokens_per_s": len(prompts) * tokens / times[-1], "ttft_ms": 1000 * times[0]}
        gaps = sorted(1000 * (after - before) for before, after in pairwise(times))
        return {**figures, "itl_ms": statistics.median(gaps), "itl_p99": percentile(gaps, 99)} if gaps else figures

    def _read(self) -> Any:
        line = self._output.readline()
        if not line:
            raise RuntimeError("the process of the library has ended")
        return json.loads(line)


@contextlib.contextmanager
def run_turn(side: Side) -> Iterator[None]:
    """Resume a side, and stop it again at the end."""
    os.killpg(side.group, signal.SIGCONT)
    try:
        yield
    finally:
        os.killpg(side.group, signal.SIGSTOP)


@contextlib.contextmanager
def serve(
    command: Sequence[str], model: str, variables: Mapping[str, str], about: Mapping[str, Any]
) -> Iterator[HttpSide]:
    """Run a server by its command without the port; ``model`` is the name by which it serves its model."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = int(sock.getsockname()[1])
    url = f"http://127.0.0.1:{port}"
    with tempfile.TemporaryFile() as log, _exiting_on_sigterm():
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
    """Run ``direct.py`` with the interpreter of another virtual environment."""
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
    with _exiting_on_sigterm(), process, _ending(process):
        yield DirectSide(process)


@contextlib.contextmanager
def _exiting_on_sigterm() -> Iterator[None]:
    """Exit cleanly on SIGTERM, so that the processes started here end too."""

    def leave(number: int, _frame: FrameType | None) -> None:
        sys.exit(128 + number)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextlib.contextmanager
def _ending(process: subprocess.Popen[Any]) -> Iterator[None]:
    """End the group of a process at the end, even if it is stopped."""
    try:
        yield
    finally:
        for number in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, number)
                os.killpg(process.pid, signal.SIGCONT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(15)


def _wait_for(url: str, process: subprocess.Popen[bytes], log: IO[bytes]) -> None:
    until = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < until and process.poll() is None:
        with contextlib.suppress(OSError), urllib.request.urlopen(url) as response:
            if response.status == OK:
                return
        time.sleep(0.3)
    log.seek(0)
    raise RuntimeError(f"no server answers at {url}: {log.read()[-2000:].decode(errors='replace')}")


def _read_device(url: str) -> dict[str, str]:
    """Return the device that ``parallax serve`` reports; empty for other servers."""
    with contextlib.suppress(OSError), urllib.request.urlopen(f"{url}/v1/cluster") as response:
        [replica] = json.load(response)["replicas"]
        return {"device": replica["stages"][0]["device"]}
    return {}

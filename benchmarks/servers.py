"""Runs commands of Parallax, each with a log that can be waited for, and asks servers for their state."""

from __future__ import annotations

import json
import os
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from benchmarks.record import PARALLAX
from tests.support.namespaces import Process

PATIENCE_S = 240.0


@contextmanager
def running(
    command: Sequence[str], home: Path | None = None, variables: Mapping[str, str] | None = None
) -> Iterator[Process]:
    """Run a command, with a home of its own if one is given; tell it to end (SIGTERM), and kill what is left."""
    kept = {name: value for name, value in os.environ.items() if not (home and name.startswith("PARALLAX_"))}
    env = kept | ({"PARALLAX_HOME": str(home)} if home else {}) | dict(variables or {})
    popen = subprocess.Popen(
        list(command), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env, start_new_session=True
    )
    process = Process(popen, time.monotonic())
    reader = threading.Thread(target=process.read, daemon=True)
    reader.start()
    try:
        yield process
    finally:
        popen.terminate()
        with suppress(subprocess.TimeoutExpired):
            popen.wait(20)
        process.end()
        reader.join()


def parallax(*words: str) -> list[str]:
    return [PARALLAX, *words]


def read_ready(process: Process, timeout_s: float = PATIENCE_S) -> tuple[str, str]:
    """Wait until a server is ready, and return its URL, which ends with ``/v1``, and the name of its model."""
    line = process.await_line("ready http", timeout_s)[1]
    return line.split()[1], line.partition("model=")[2].strip()


@contextmanager
def serving(model: str, *options: str) -> Iterator[tuple[str, str]]:
    """Run ``parallax serve`` on a free port, and yield its URL, which ends with ``/v1``, and the name of its model."""
    with running(parallax("serve", model, "--port", "0", *options)) as process:
        yield read_ready(process)


def fetch(url: str, body: Mapping[str, Any] | None = None) -> Any:
    """Return the JSON of an answer; an error of the server is an answer, too.

    Raises:
        OSError: if there is none.
    """
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as response:
            return json.load(response)
    except urllib.error.HTTPError as error:
        return json.load(error)


def cluster(url: str) -> dict[str, Any]:
    found: dict[str, Any] = fetch(f"{url.removesuffix('/v1')}/v1/cluster")
    return found


def read_metric(url: str, name: str) -> float:
    with urllib.request.urlopen(f"{url.removesuffix('/v1')}/metrics", timeout=PATIENCE_S) as response:
        lines = response.read().decode().splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith((f"{name}{{", f"{name} ")))

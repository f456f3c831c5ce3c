"""Workers that leave a server, and workers whose server is killed."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import openai
import pytest

from parallax_client.client import Client
from tests.e2e.conftest import END_TIMEOUT_S, MODEL, PARALLAX, Server, environment, start_server
from tests.e2e.test_workers import list_spares, list_workers, read_command, read_stream, wait_until
from tests.support.process_pipeline import is_alive


@pytest.fixture
def address() -> Iterator[str]:
    """Return an address with a path so short that a socket can be there."""
    with TemporaryDirectory(prefix="parallax-") as folder:
        yield f"ipc://{folder}/head"


@contextmanager
def worker(home: Path, folder: Path, address: str, name: str) -> Iterator[subprocess.Popen[bytes]]:
    command = [PARALLAX, "worker", "--backend", "mlx", "--connect", address, "--node", name]
    with (folder / f"{name}.log").open("wb") as log:
        process = subprocess.Popen(command, stderr=log, env=environment(home))
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@contextmanager
def serving(home: Path, log: Path, address: str) -> Iterator[Server]:
    """Serve the model in two stages on workers that join at ``address``, with a spare."""
    options = ("--listen", address, "--layers", "0-10,10-30", "--spares", "1")
    command = [PARALLAX, "serve", MODEL, "--port", "0", *options]
    with log.open("w") as sink:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=sink, text=True, env=environment(home))
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("ready "), log.read_text()
        yield Server(process, line.split()[1], log)
    finally:
        process.kill()
        process.communicate()


def list_stages(server: Server) -> list[tuple[str, int]]:
    """Return the node and the process of each stage."""
    [replica] = Client(server.url).cluster()["replicas"]
    return [(stage["node"], stage["pid"]) for stage in replica["stages"]]


@pytest.mark.nightly
def test_worker_leaves_without_a_loss_and_the_others_outlive_their_server(
    model_home: Path, tmp_path: Path, address: str
) -> None:
    with ExitStack() as stack:
        workers = {n: stack.enter_context(worker(model_home, tmp_path, address, n)) for n in ("one", "two", "three")}
        with serving(model_home, tmp_path / "log", address) as server:
            whole = read_stream(server, 0, lambda: None)
            wait_until(lambda: bool(list_spares(server)))
            leaver = list_stages(server)[1][0]
            leaving = threading.Thread(target=leave, args=(model_home, leaver))
            assert read_stream(server, 12, leaving.start) == whole
            leaving.join()
            assert workers.pop(leaver).wait(10) == 0
            stages = list_stages(server)
            assert leaver not in dict(stages)
            assert Client(server.url).cluster()["replicas"][0]["losses"] == 0
            server.process.kill()
        assert all(process.poll() is None for process in workers.values())
        with serving(model_home, tmp_path / "again", address) as again:
            assert read_stream(again, 0, lambda: None) == whole
            assert set(list_stages(again)) == set(stages)
    logs = "".join(path.read_text() for path in tmp_path.glob("*.log"))
    assert "Traceback" not in logs + (tmp_path / "log").read_text()


def leave(home: Path, name: str) -> None:
    command = [PARALLAX, "cluster", "leave", name]
    done = subprocess.run(command, env=environment(home), capture_output=True, text=True, timeout=60, check=True)
    assert re.fullmatch(rf"{name} leaves ipc://.*\n{name} has left\n", done.stdout)


def test_workers_end_with_a_server_that_is_killed_while_it_replaces_one(
    model_home: Path, split: Path, tmp_path: Path
) -> None:
    server = start_server(model_home, tmp_path / "log", "--layers", "0-4,4-8,8-12", model=str(split))
    pids = set(list_workers(server.process.pid))
    [lost] = [pid for pid in pids if b"worker/0/1" in read_command(pid)]
    stream = threading.Thread(target=read_until_end, args=(server, split.name))
    stream.start()
    os.kill(lost, signal.SIGKILL)
    wait_until(lambda: "pipeline is built anew" in server.log.read_text())
    pids |= set(list_workers(server.process.pid))
    server.end(signal.SIGKILL)
    stream.join(END_TIMEOUT_S)
    assert not stream.is_alive()
    wait_until(lambda: not any(map(is_alive, pids)), 10)


def read_until_end(server: Server, model: str) -> None:
    """Read a stream until its connection breaks, whatever error that is to the client."""
    question: Any = [{"role": "user", "content": "Count from one to a hundred, in words."}]
    with openai.OpenAI(base_url=server.url, api_key="x", max_retries=0) as client, suppress(Exception):
        for _ in client.chat.completions.create(model=model, messages=question, max_tokens=500, stream=True):
            pass

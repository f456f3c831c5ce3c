"""Machines that join `parallax run`: each has a home, and so keys, of its own; a planner places the layers."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from parallax_client.client import Client
from tests.e2e.conftest import MODEL, PARALLAX, Server, environment, make_home
from tests.e2e.test_workers import read_stream, wait_until
from tests.support.terminal import Terminal

ROOM = ("--memory", "0.4")
"""Less than the real model takes, and more than half of it."""
SPLIT_ROOM = ("--memory", "0.042")
"""The same of the model that is made to be split."""


@pytest.fixture
def homes(model_home: Path, tmp_path: Path) -> dict[str, Path]:
    """Return the homes of machines that have the model."""
    return {name: make_home(tmp_path / name, model_home) for name in ("first", "one", "two", "three")}


@contextmanager
def started(
    home: Path, log: Path, *arguments: str, terminal: Terminal | None = None
) -> Iterator[subprocess.Popen[str]]:
    with log.open("w") as sink:
        errors = terminal.theirs if terminal else sink
        command, settings = [PARALLAX, *arguments], environment(home, CI="", TERM="xterm")
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, env=settings)
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


@contextmanager
def coordinating(
    home: Path, log: Path, *options: str, model: str | Path = MODEL, terminal: Terminal | None = None
) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run a coordinator, and yield it with the code by which machines join."""
    listen = ("--listen", "tcp://127.0.0.1:0", "--port", "0", "--backend", "mlx")
    room = ROOM if model == MODEL else SPLIT_ROOM
    with started(home, log, "run", str(model), *listen, *room, *options, terminal=terminal) as process:
        assert process.stdout is not None
        command = process.stdout.readline().split()
        assert command[:2] == ["parallax", "join"], log.read_text()
        yield process, command[2]


def join_with(model: Path, *words: str) -> tuple[str, ...]:
    """Return the arguments by which a machine joins with room for half of ``model``, which it may load."""
    return ("join", "--backend", "mlx", *SPLIT_ROOM, "--allow-model", str(model), *words)


def read_ready(process: subprocess.Popen[str], log: Path) -> Server:
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line.startswith("ready "), log.read_text()
    return Server(process, line.split()[1], log)


def list_users(server: Server) -> set[str]:
    """Return the nodes with a stage of a pipeline that is ready."""
    replicas = [each for each in Client(server.url).cluster()["replicas"] if each["status"] == "ready"]
    return {stage["node"] for replica in replicas for stage in replica["stages"]}


def test_machines_that_join_serve_together_and_one_may_die(homes: dict[str, Path], split: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    with ExitStack() as stack:
        process, code = stack.enter_context(coordinating(homes["first"], log, "--nodes", "3", model=split))
        logs = {name: tmp_path / f"{name}.log" for name in ("one", "two")}
        machines: dict[str, subprocess.Popen[Any]] = {
            name: stack.enter_context(started(homes[name], path, *join_with(split, code)))
            for name, path in logs.items()
        }
        server = read_ready(process, log)
        whole = read_stream(server, 0, lambda: None)
        assert whole[1] == "length"
        pids = {each.pid for each in machines.values()}
        used = {int(node.rpartition("/")[2]) for node in list_users(server)} & pids
        victim = next(iter(used))
        assert read_stream(server, 12, partial(os.kill, victim, signal.SIGKILL)) == whole
        assert not any(node.endswith(f"/{victim}") for node in list_users(server))

        [last] = pids - {victim}
        os.kill(last, signal.SIGKILL)
        wait_until(lambda: "the model needs" in Client(server.url).cluster()["reason"])
        found = Client(server.url).cluster()
        assert found["status"] == "starting"
        assert "there is one node" in found["reason"]

        stack.enter_context(started(homes["three"], tmp_path / "three.log", *join_with(split, code)))
        wait_until(lambda: Client(server.url).cluster()["status"] == "ready")
        assert read_stream(server, 0, lambda: None) == whole
        assert server.end(signal.SIGTERM) < 5
        assert re.search(r"pipeline 0 has layers 0-\d+ on", log.read_text())


@pytest.mark.nightly
def test_machine_that_has_room_for_the_model_serves_it_alone(homes: dict[str, Path], tmp_path: Path) -> None:
    log, kept = tmp_path / "log", homes["first"] / "log" / "run.log"
    with Terminal() as terminal, coordinating(homes["first"], log, "--memory", "2", terminal=terminal) as (process, _):
        server = read_ready(process, log)
        assert list_users(server) == {"local/0"}
        assert read_stream(server, 0, lambda: None)[1] == "length"
        wait_until(lambda: re.search(r"local/0 .* serving  smollm2-135m  0        0-30", terminal.text) is not None)
        assert server.end(signal.SIGTERM) < 5
    assert f"log: {kept}" in terminal.text
    assert "head listens" not in terminal.text
    assert "head listens" in kept.read_text()


def test_coordinator_without_layers_of_its_own_waits_for_machines(
    homes: dict[str, Path], split: Path, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    with coordinating(homes["first"], log, "--no-local", model=split) as (process, _):
        wait_until(lambda: "and no node has joined" in log.read_text())
        assert process.poll() is None


def test_listening_at_an_address_in_use_is_an_error(homes: dict[str, Path], split: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    with coordinating(homes["first"], log, "--no-local", model=split) as _:
        [address] = re.findall(r"head listens at (\S+)", log.read_text())
        again = [PARALLAX, "run", str(split), "--backend", "mlx", "--listen", address, "--port", "0"]
        done = subprocess.run(again, capture_output=True, text=True, env=environment(homes["one"]), check=False)
        assert done.returncode == 1
        assert "error: " in done.stderr
        assert "Traceback" not in done.stderr


@pytest.mark.nightly
def test_worker_of_the_server_joins_again_when_its_link_breaks(homes: dict[str, Path], tmp_path: Path) -> None:
    log = tmp_path / "log"
    with coordinating(homes["first"], log, "--memory", "2") as (process, _):
        server = read_ready(process, log)
        whole = read_stream(server, 0, lambda: None)
        [pid] = {stage["pid"] for each in Client(server.url).cluster()["replicas"] for stage in each["stages"]}

        def stop() -> None:
            os.kill(pid, signal.SIGSTOP)
            wait_until(lambda: "no sign of life" in log.read_text())
            os.kill(pid, signal.SIGCONT)

        assert read_stream(server, 3, stop) == whole
        assert {stage["pid"] for each in Client(server.url).cluster()["replicas"] for stage in each["stages"]} == {pid}
        assert "has ended" not in log.read_text()
        assert server.end(signal.SIGTERM) < 5

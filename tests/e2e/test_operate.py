"""What an operator does with a cluster of real processes."""

from __future__ import annotations

import json
import subprocess
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from parallax_core.base.ids import name_machine
from parallax_core.cli.client import Client
from tests.e2e.conftest import MODEL, PARALLAX, environment, make_home
from tests.e2e.test_run import list_users, read_ready, started
from tests.e2e.test_workers import read_stream, wait_until
from tests.e2e.tiny import write_tiny
from tests.support.zmq_nodes import find_tcp_port


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory, model_folder: Path) -> Path:
    return write_tiny(tmp_path_factory.mktemp("models") / "tiny", model_folder)


@pytest.fixture
def homes(model_home: Path, tmp_path: Path) -> dict[str, Path]:
    return {name: make_home(tmp_path / name, model_home) for name in ("first", "one", "other")}


def run_command(home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [PARALLAX, *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environment(home), check=False)


def test_restored_server_takes_its_nodes_back(homes: dict[str, Path], tiny: Path, tmp_path: Path) -> None:
    logs = {name: tmp_path / f"{name}.log" for name in homes}
    listen = ("--listen", f"tcp://127.0.0.1:{find_tcp_port()}", "--port", "0")
    options = (
        "run",
        str(tiny),
        "--served-model-name",
        MODEL,
        "--no-local",
        "--no-discovery",
        "--log-format",
        "json",
        *listen,
    )
    backup = tmp_path / "backup"
    join = ("join", "--no-discovery", "--no-api", "--backend", "mlx", "--allow-model", "*", "--log-format", "json")
    with started(homes["first"], logs["first"], *options) as first:
        assert first.stdout is not None
        code = first.stdout.readline().split()[2]
        with started(homes["one"], logs["one"], *join, code) as one:
            server = read_ready(first, logs["first"])
            answer, users = read_stream(server, 0, lambda: None), list_users(server)
            done = run_command(homes["first"], "cluster", "backup", str(backup))
            assert done.returncode == 0, done.stderr
            refused = run_command(homes["first"], "cluster", "restore", str(backup))
            assert (refused.returncode, "a server of this user runs here" in refused.stderr) == (1, True)
            first.kill()
            first.wait()
            done = run_command(homes["other"], "cluster", "restore", str(backup))
            assert done.returncode == 0, done.stderr
            with started(homes["other"], logs["other"], *options) as other:
                assert other.stdout is not None
                other.stdout.readline()  # the command to join
                server = read_ready(other, logs["other"])
                assert list_users(server) == users
                assert read_stream(server, 0, lambda: None) == answer
                assert one.poll() is None
                wait_until(partial(has_joined, server.url, users))
    for name, log in logs.items():
        lines = [json.loads(line) for line in log.read_text().splitlines()]
        assert all({"time", "level", "logger", "message", "fields"} <= line.keys() for line in lines), name
    assert any("node joined" in line for line in logs["other"].read_text().splitlines())


def has_joined(url: str, nodes: set[str]) -> bool:
    return {node["node"] for node in Client(url).cluster()["nodes"]} == nodes


class DrainedCluster:
    """A server without layers of its own, and machines that join it."""

    def __init__(self, stack: ExitStack, homes: dict[str, Path], folder: Path, model: Path) -> None:
        self._stack, self._homes, self._folder = stack, homes, folder
        listen = ("--listen", f"tcp://127.0.0.1:{find_tcp_port()}", "--port", "0")
        self._options = ("run", str(model), "--served-model-name", MODEL, "--no-local", "--no-discovery", *listen)
        self.start("first")

    def start(self, name: str) -> None:
        """Start the server, whose log is called ``name``."""
        log = self._folder / f"{name}.log"
        self.process = self._stack.enter_context(started(self._homes["first"], log, *self._options))
        assert self.process.stdout is not None
        self.code = self.process.stdout.readline().split()[2]
        self._log = log

    def join(self, name: str, *options: str) -> None:
        """Have a machine join."""
        join = ("join", "--no-discovery", "--no-api", "--backend", "mlx", "--allow-model", "*", *options, self.code)
        self._stack.enter_context(started(self._homes[name], self._folder / f"{name}.log", *join))

    def read_ready(self) -> None:
        """Wait until the server is ready."""
        self.server = read_ready(self.process, self._log)

    def await_nodes(self, number: int) -> None:
        """Wait until as many nodes have said what they have."""
        wait_until(lambda: [bool(each["profile"]) for each in self.nodes] == [True] * number)

    @property
    def nodes(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = Client(self.server.url).cluster()["nodes"]
        return found

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a command on the server's machine."""
        return run_command(self._homes["first"], *arguments, "--url", self.server.url)


def test_drained_node_has_no_layers_also_after_a_restart(homes: dict[str, Path], tiny: Path, tmp_path: Path) -> None:
    with ExitStack() as stack:
        cluster = DrainedCluster(stack, homes, tmp_path, tiny)
        cluster.join("one")
        cluster.read_ready()
        [one] = list_users(cluster.server)
        whole = read_stream(cluster.server, 0, lambda: None)
        cluster.join("other")
        cluster.await_nodes(2)
        drained = cluster.run("nodes", "drain", one)
        assert drained.stdout == f"{name_machine(one)} is drained: it has no layers, and gets none\n", drained.stderr
        [other] = list_users(cluster.server)
        assert other != one
        assert read_stream(cluster.server, 0, lambda: None) == whole
        refused = cluster.run("nodes", "drain", other)
        assert f"error: {other} keeps its layers, since no room is left elsewhere: " in refused.stderr
        assert read_stream(cluster.server, 0, lambda: None) == whole
        assert cluster.run("nodes", "resume", other).returncode == 0
        cluster.process.kill()
        cluster.process.wait()
        cluster.start("again")
        cluster.read_ready()
        cluster.await_nodes(2)
        assert list_users(cluster.server) == {other}
        shown = cluster.run("nodes").stdout
        assert f"idle: {one}: it is drained; `parallax nodes resume` takes it back" in shown
        (tmp_path / "shown").write_text(shown)

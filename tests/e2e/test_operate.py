"""What an operator does with a cluster of real processes."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import quote

import openai
import pytest

from parallax_client.client import Client
from parallax_core.base.ids import name_machine
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
    return {name: make_home(tmp_path / name, model_home) for name in ("first", "one", "other", "relay")}


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
        relaying = started(homes["relay"], logs["relay"], "cluster", "relay", "--log-format", "json", code)
        with started(homes["one"], logs["one"], *join, code) as one, relaying:
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
    for log in logs.values():
        check_json(log)
    assert any("node joined" in line for line in logs["other"].read_text().splitlines())


def check_json(log: Path) -> None:
    """Check that a log has lines, and that each is an object with the usual fields."""
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert lines
    assert all({"time", "level", "logger", "message", "fields"} <= line.keys() for line in lines), log.name


def has_joined(url: str, nodes: set[str]) -> bool:
    return {node["node"] for node in Client(url).cluster()["nodes"]} == nodes


class DrainedCluster:
    """A server without layers of its own, and machines that join it."""

    def __init__(self, stack: ExitStack, homes: dict[str, Path], folder: Path, model: Path, *options: str) -> None:
        self._stack, self._homes, self._folder = stack, homes, folder
        listen = ("--listen", f"tcp://127.0.0.1:{find_tcp_port()}", "--port", "0")
        self._options = (
            "run",
            str(model),
            "--served-model-name",
            MODEL,
            "--no-local",
            "--no-discovery",
            *listen,
            *options,
        )
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

    @property
    def num_requests(self) -> int:
        """The requests that are being answered."""
        return sum(each["requests"] for each in Client(self.server.url).cluster()["replicas"])

    def stream_long(self) -> Iterator[str]:
        """Yield the texts of an answer that takes a while."""
        body = {"prompt": "Once", "max_tokens": 480, "temperature": 0, "ignore_eos": True, "stream": True}
        for choice in Client(self.server.url).stream("/completions", {"model": MODEL, **body}):
            yield choice["text"]

    def drain_while_answering(self, node: str) -> None:
        """Have a node drained in the middle of an answer, and check that this ends as it would have."""
        answer = "".join(self.stream_long())
        running = self.stream_long()
        first = next(running)
        Client(self.server.url).change_cluster(f"/nodes/{quote(node)}/drain")
        assert self.num_requests == 1, "it is answered while its node is drained"
        assert first + "".join(running) == answer

    def remove_while_answering(self, node: str, whole: object) -> None:
        """Have a machine removed in the middle of an answer, and check that this ends as it would have."""
        answers: list[object] = []
        running = Thread(target=lambda: answers.append(read_stream(self.server, 0, lambda: None)))
        running.start()
        removed = self.run("nodes", "remove", node)
        assert f"{name_machine(node)} is removed, and its key with it" in removed.stdout, removed.stderr
        wait_until(lambda: len(self.nodes) == 1)
        running.join()
        assert answers == [whole]
        assert "error: no machine called" in self.run("nodes", "remove", node).stderr

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
        cluster.drain_while_answering(one)
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
        cluster.remove_while_answering(one, whole)


def test_nodes_take_no_longer_requests_than_their_users_allow(
    homes: dict[str, Path], tiny: Path, tmp_path: Path
) -> None:
    with ExitStack() as stack:
        plan = ("--set", "prompt_tokens=64", "--set", "output_tokens=64")
        cluster = DrainedCluster(stack, homes, tmp_path, tiny, *plan)
        cluster.join("other", "--max-context", "127")
        wait_until(lambda: "take at most 127 (max_context)" in (tmp_path / "first.log").read_text())
        cluster.join("one", "--max-context", "200")
        cluster.read_ready()
        cluster.await_nodes(2)
        with openai.OpenAI(base_url=cluster.server.url, api_key="x", max_retries=0) as client:
            model, *_ = client.models.list().data
            assert model.model_extra is not None
            assert model.model_extra["max_model_len"] == 200
            with pytest.raises(openai.BadRequestError, match="200"):
                client.completions.create(model=model.id, prompt=[1] * 200, max_tokens=1)
            answer = client.completions.create(model=model.id, prompt=[1] * 190, max_tokens=10)
            assert answer.usage is not None
            assert answer.usage.total_tokens <= 200
        [idle] = [node for node in cluster.nodes if node["state"] == "idle"]
        assert idle["idle_reason"].startswith("it takes requests of up to 127 tokens (max_context), and 128 ")


@pytest.mark.parametrize("command", [("cluster", "rendezvous", "--listen", "tcp://127.0.0.1:0"), ("worker",)])
def test_log_of_a_machine_is_json_if_asked_for(homes: dict[str, Path], tmp_path: Path, command: Sequence[str]) -> None:
    nobody = f"tcp://127.0.0.1:{find_tcp_port()}"
    further = ("--connect", nobody, "--backend", "mlx") if command == ("worker",) else ("--no-discovery",)
    words = "trying again" if command == ("worker",) else "listens at"
    log = tmp_path / "log"
    with started(homes["first"], log, *command, *further, "--log-format", "json"):
        wait_until(lambda: words in log.read_text() and log.read_text().endswith("\n"))
    check_json(log)

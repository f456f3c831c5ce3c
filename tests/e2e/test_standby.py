"""A standby takes the place of a coordinator whose machine dies: real processes and keys."""

from __future__ import annotations

import re
import signal
import subprocess
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

from parallax_client.client import Client
from tests.e2e.conftest import PARALLAX, Server, environment, run_command
from tests.e2e.test_run import coordinating, homes, join_with, list_users, read_ready, started
from tests.e2e.test_workers import read_stream, wait_until
from tests.e2e.tiny import write_tiny
from tests.support.zmq_nodes import find_tcp_port

__all__ = ["homes"]

STAGES = ("--no-local", "--nodes", "2")


class Machines:
    """A coordinator, two machines that have joined it, and one that stands by."""

    def __init__(self, stack: ExitStack, homes: dict[str, Path], model: Path, folder: Path, *join: str) -> None:
        """Have the machines join with the options ``join``."""
        self._stack = stack
        self._homes = homes
        self.logs = {name: folder / f"{name}.log" for name in ("first", "one", "two", "three", "again")}
        self._listen = f"tcp://127.0.0.1:{find_tcp_port()}"
        options = (*STAGES, "--listen", self._listen)
        self.first, self.code = stack.enter_context(
            coordinating(homes["first"], self.logs["first"], *options, model=model)
        )
        self.api = find_tcp_port()
        """Where clients of the first machine that joins are served."""
        for name, api in {"one": ("--port", str(self.api)), "two": ("--no-api",)}.items():
            self._start(name, homes[name], *join_with(model, "-v", *api, *join, self.code))
        self.server = read_ready(self.first, self.logs["first"])

    def _start(self, name: str, home: Path, *arguments: str) -> subprocess.Popen[str]:
        return self._stack.enter_context(started(home, self.logs[name], *arguments))

    def stand_by(self) -> subprocess.Popen[str]:
        """Start a standby, and wait until it follows."""
        listen = ("--listen", f"tcp://127.0.0.1:{find_tcp_port()}", "--port", "0")
        options = ("run", "--standby-of", self.code, *listen, *STAGES)
        assert self._start("three", self._homes["three"], *options).wait(60) == 1, "it may run stages only"
        [allow] = re.findall(r"`parallax (keys allow .* --role any)`", self.logs["three"].read_text())
        assert run_command(self._homes["first"], *allow.split()).returncode == 0
        process = self._start("three", self._homes["three"], *options)
        self._standby = options
        wait_until(partial(self.says, "three", "following the coordinator"))
        wait_until(partial(self.says, "first", "standby follows"))
        return process

    def promote(self, name: str = "three") -> subprocess.CompletedProcess[str]:
        """Have the standby take over, on the machine where it runs or on another one."""
        return run_command(self._homes[name], "cluster", "promote")

    def start_again(self, *options: str) -> subprocess.Popen[str]:
        """Start the first coordinator again, as it was, with further options."""
        assert isinstance(self.first.args, list)
        return self._start("again", self._homes["first"], *[str(each) for each in self.first.args[1:]], *options)

    def start_successor_again(self) -> Server:
        """Start the standby that has taken over as it was, and return it once it serves."""
        process = self._start("three", self._homes["three"], *self._standby)
        assert process.stdout is not None
        assert process.stdout.readline().startswith("parallax join ")
        server = read_ready(process, self.logs["three"])
        assert self.says("three", "has taken over from")
        return server

    def says(self, name: str, text: str) -> bool:
        return text in self.logs[name].read_text()

    def count_loads(self) -> list[int]:
        """Return how often each node has loaded a stage: each time the backend tests its kernels."""
        return [self.logs[name].read_text().count("selftest") for name in ("one", "two")]


def list_nodes(server: Server) -> set[str]:
    return {node["node"] for node in Client(server.url).cluster()["nodes"]}


Answer = tuple[str, str | None, int]


@pytest.mark.timeout(600)
def test_standby_takes_over_with_what_is_loaded(homes: dict[str, Path], split: Path, tmp_path: Path) -> None:
    with ExitStack() as stack:
        machines = Machines(stack, homes, split, tmp_path)
        whole, users = read_stream(machines.server, 0, lambda: None), list_users(machines.server)
        assert whole[1] == "length"
        assert "no standby runs" in machines.promote().stderr
        loads = machines.count_loads()
        assert all(loads)
        successor = take_over(machines)
        assert list_users(successor) == users
        assert read_stream(successor, 0, lambda: None) == whole
        assert machines.count_loads() == loads, "the weights were there"
        plan = Client(f"http://127.0.0.1:{machines.api}/v1").cluster()["plan"]
        assert plan["term"] == 2, "clients of a machine that has joined get to the new coordinator"


def take_over(machines: Machines) -> Server:
    """Have a standby take the place of the coordinator, which is killed, and return it once it serves."""
    standby = machines.stand_by()
    assert "still answers" in machines.promote().stderr
    machines.first.kill()
    wait_until(lambda: machines.promote().returncode == 0)
    assert standby.stdout is not None
    assert standby.stdout.readline().startswith("parallax join ")
    return read_ready(standby, machines.logs["three"])


@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_coordinator_whose_place_was_taken_is_refused_until_it_has_a_new_term(
    homes: dict[str, Path], split: Path, tmp_path: Path
) -> None:
    with ExitStack() as stack:
        machines = Machines(stack, homes, split, tmp_path)
        whole, users = read_stream(machines.server, 0, lambda: None), list_users(machines.server)
        assert take_over(machines).end(signal.SIGTERM) < 5
        successor = machines.start_successor_again()
        again = machines.start_again()
        wait_until(partial(machines.says, "again", "head listens"))
        assert list_nodes(successor) == users
        assert successor.end(signal.SIGTERM) < 5
        assert again.wait(60) == 1, "a node has told it of the newer term"
        assert machines.says("again", "another coordinator has taken over: its term is 2, and that of this one was 1")
        check_new_term(machines, users, whole)


def check_new_term(machines: Machines, users: set[str], whole: Answer) -> None:
    """Check that the first coordinator serves again once it is told that its successor is lost for good."""
    assert machines.start_again().wait(60) == 1, "it knows that now"
    assert not machines.says("again", "head listens")
    assert machines.says("again", "if that is lost for good, `parallax run --new-term` serves here again")
    assert "`parallax run --new-term`" in machines.promote("first").stderr

    last = machines.start_again("--new-term")
    assert last.stdout is not None
    assert last.stdout.readline().startswith("parallax join ")
    server = read_ready(last, machines.logs["again"])
    assert list_users(server) == users
    assert read_stream(server, 0, lambda: None) == whole
    assert Client(f"http://127.0.0.1:{machines.api}/v1").cluster()["plan"]["term"] == 3
    assert server.end(signal.SIGTERM) < 5


@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_standby_that_takes_over_loads_the_other_models_again(
    homes: dict[str, Path], split: Path, model_folder: Path, tmp_path: Path
) -> None:
    tiny = write_tiny(tmp_path / "tiny", model_folder)
    with ExitStack() as stack:
        machines = Machines(stack, homes, split, tmp_path, "--memory", "2", "--allow-model", str(tiny))
        standby = machines.stand_by()
        load = [PARALLAX, "models", "load", str(tiny), "--url", machines.server.url]
        subprocess.run(load, check=True, env=environment(homes["first"]))

        machines.first.kill()
        wait_until(lambda: machines.promote().returncode == 0)
        assert standby.stdout is not None
        standby.stdout.readline()
        client = Client(read_ready(standby, machines.logs["three"]).url)
        wait_until(lambda: [each["state"] for each in client.known_models()["data"]] == ["ready", "ready"])
        body = {"prompt": "Once upon a time", "max_tokens": 4}
        assert [client.send("/completions", {**body, "model": name}).status for name in (split.name, "tiny")] == [
            200,
            200,
        ]


def call(home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [PARALLAX, *arguments], capture_output=True, text=True, env=environment(home), timeout=60, check=False
    )


def list_keys(home: Path) -> dict[str, tuple[str, str]]:
    """Return the state and the public half of each key by its name, but those of servers."""
    rows = [line.split() for line in call(home, "keys", "list").stdout.splitlines()]
    return {name: (state, key) for name, state, key, *_ in rows if not name.startswith("head")}


@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_machine_that_is_removed_after_a_promotion_is_out_at_once_and_stays_out(
    homes: dict[str, Path], split: Path, tmp_path: Path
) -> None:
    with ExitStack() as stack:
        machines = Machines(stack, homes, split, tmp_path)
        standby = machines.stand_by()
        machines.first.kill()
        wait_until(lambda: machines.promote().returncode == 0)
        assert standby.stdout is not None
        code = standby.stdout.readline().split()[2]
        successor = read_ready(standby, machines.logs["three"])
        wait_until(lambda: len(list_users(successor)) == 2)
        [(_, key)] = list_keys(homes["two"]).values()
        [name] = [name for name, (_, public) in list_keys(homes["three"]).items() if public == key]

        removed = call(homes["three"], "keys", "remove", name.upper())
        assert removed.returncode == 0, removed.stderr
        wait_until(lambda: all(node.partition("/")[0] != name for node in list_nodes(successor)))
        assert f"this machine was removed here, as '{name}'" in call(homes["two"], "join", code).stderr
        assert list_keys(homes["three"])[name] == ("removed", key)

"""Machines that join a server by codes: each has a home, and so keys, of its own."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from parallax_client.client import Client
from tests.e2e.conftest import PARALLAX, Server, environment, make_home, run_command
from tests.e2e.test_workers import read_stream, wait_until


@pytest.fixture
def homes(model_home: Path, tmp_path: Path) -> dict[str, Path]:
    """Return the homes of machines that have the model, and no figures of their processor yet."""
    made = {name: make_home(tmp_path / name, model_home) for name in ("server", "one", "two", "spare", "late")}
    for home in made.values():
        (home / "cache").unlink()
    return made


def run(home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [PARALLAX, *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environment(home), timeout=120, check=False)


@contextmanager
def joining(home: Path, model: Path, where: str, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("wb") as sink:
        command = [PARALLAX, "join", "--backend", "mlx", "--allow-model", str(model), where]
        process = subprocess.Popen(command, stderr=sink, env=environment(home))
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@contextmanager
def listening(home: Path, model: Path, log: Path) -> Iterator[subprocess.Popen[str]]:
    options = ("--layers", "0-4,4-12", "--listen", "tcp://127.0.0.1:0", "--port", "0")
    with log.open("w") as sink:
        command = [PARALLAX, "serve", str(model), *options]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=sink, text=True, env=environment(home))
    try:
        wait_until(lambda: "head listens at" in log.read_text())
        yield process
    finally:
        process.kill()
        process.communicate()


def make_code(home: Path, *options: str) -> str:
    made = run_command(home, "cluster", "codes", "new", *options)
    assert made.stdout.startswith("parallax join plx1"), made.stderr
    return made.stdout.split()[2]


def list_nodes(server: Server) -> list[str]:
    [replica] = Client(server.url).cluster()["replicas"]
    return sorted(stage["node"].partition("/")[0] for stage in replica["stages"])


def list_profiles(server: Server) -> dict[str, Any]:
    return {node["node"]: node["profile"] for node in Client(server.url).cluster()["nodes"] if node["profile"]}


def check_report(server: Server) -> str:
    """Check what the only node that reports itself says, and return its name."""
    wait_until(lambda: bool(list_profiles(server)))
    [(name, profile)] = list_profiles(server).items()
    assert profile["measured"]
    assert profile["flops"] > profile["bandwidth"] / 100 > 0
    assert 0 < profile["memory"] <= profile["total_memory"]
    wait_until(lambda: len(list_profiles(server)[name]["links"]) == 3)
    links = {link["peer"]: link for link in list_profiles(server)[name]["links"]}
    assert "head" in links, "and both others: each end measures a link"
    assert all(0 < link["round_trip_seconds"] < 5 < link["bandwidth"] for link in links.values())
    assert f"{name}  {profile['device']}" in run_command(Path(), "status", "--url", server.url).stdout
    return name


def test_strangers_join_by_a_code_and_again_by_their_own_keys(
    homes: dict[str, Path], split: Path, tmp_path: Path
) -> None:
    assert run_command(homes["server"], "keys", "new").returncode == 0
    with ExitStack() as stack:
        process = stack.enter_context(listening(homes["server"], split, tmp_path / "log"))
        code = make_code(homes["server"], "--uses", "3")
        for name in ("one", "two"):
            stack.enter_context(joining(homes[name], split, code, tmp_path / f"{name}.log"))
        assert process.stdout is not None
        server = Server(process, process.stdout.readline().split()[1], tmp_path / "log")
        whole = read_stream(server, 0, lambda: None)
        first, second = list_nodes(server)
        assert second == f"{first}-2", "both machines have the same host name"

        stack.enter_context(joining(homes["spare"], split, code, tmp_path / "spare.log"))
        assert check_report(server).startswith(f"{first}-3/"), "nodes with a stage are not measured"

        late = run(homes["late"], "join", code)
        assert late.returncode == 1
        assert "was to be used by 3 machines, and has been" in late.stderr
        assert "hint: ask for another code" in late.stderr
        [row] = run_command(homes["server"], "cluster", "codes", "list").stdout.splitlines()[1:]
        assert row.split()[1:3] == ["used", "3/3"]

        [address] = {line.split()[1] for line in (tmp_path / "one.log").read_text().splitlines() if "joining" in line}
        stack.enter_context(joining(homes["one"], split, address, tmp_path / "again.log"))
        wait_until(lambda: "joined head=head" in (tmp_path / "again.log").read_text())
        assert read_stream(server, 0, lambda: None) == whole

        revoked = make_code(homes["server"])
        name = run_command(homes["server"], "cluster", "codes", "list").stdout.splitlines()[1].split()[0]
        assert run_command(homes["server"], "cluster", "codes", "revoke", name).returncode == 0
        assert f"the join code {name} was revoked" in run(homes["late"], "join", revoked).stderr


def test_code_of_no_server_says_so(homes: dict[str, Path]) -> None:
    assert run_command(homes["server"], "keys", "new").returncode == 0
    made = run_command(homes["server"], "cluster", "codes", "new")
    assert made.returncode == 1
    assert "no server of this machine has listened for nodes yet" in made.stderr
    for where, reason in {
        "plx1abc": "the join code is damaged",
        "somewhere": "'somewhere' is neither a join code nor an address",
        "tcp://127.0.0.1:1": "this machine has not joined a server at tcp://127.0.0.1:1 before",
    }.items():
        refused = run(homes["one"], "join", where)
        assert refused.returncode in {1, 2}
        assert f"error: {reason}" in refused.stderr

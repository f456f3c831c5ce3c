"""What `parallax join` checks before it uses up a code, and how the worker then runs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from parallax_cluster.cli import join as module
from parallax_cluster.deploy.joined import JoinedHead
from parallax_cluster.node.forwarding.forwarder import bind_api
from parallax_core.base.errors import ParallaxError
from parallax_core.config.worker import WorkerSettings
from parallax_core.deploy.head_access import HeadAccess

WHERE = "tcp://10.0.0.5:9000"
HEAD = JoinedHead(transport="zmq", address=WHERE, head=bytes(32), machine="mini")


class Joins:
    """The heads that were joined, and the workers that then ran."""

    def __init__(self) -> None:
        self.joined: list[tuple[str, bool]] = []
        self.ran: list[tuple[WorkerSettings, HeadAccess]] = []

    def make_joiner(self, plugins: object, *, looks_around: bool) -> Any:
        """Return what stands for a `Joiner`: it asks nobody."""
        del plugins
        joins = self

        class Joiner:
            def join(self, where: str) -> JoinedHead:
                joins.joined.append((where, looks_around))
                return HEAD

            def find_key(self, joined: JoinedHead) -> dict[str, bytes]:
                return {"head": joined.head}

            async def list_addresses(self, joined: JoinedHead, timeout_s: float) -> tuple[str, ...]:
                return (joined.address, f"{timeout_s:g}")

        return Joiner()

    def run_worker(self, _config: object, settings: WorkerSettings, access: HeadAccess, _view: object) -> None:
        self.ran.append((settings, access))


@pytest.fixture
def joins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Joins]:
    monkeypatch.setenv("PARALLAX_HOME", str(tmp_path))
    HEAD.save()
    found, sockets = Joins(), ExitStack()
    monkeypatch.setattr(module, "bind_api", lambda port: sockets.enter_context(bind_api(port)))
    monkeypatch.setattr(module, "Joiner", found.make_joiner)
    monkeypatch.setattr(module, "run_worker", found.run_worker)
    with sockets:
        yield found


def join(*arguments: str, given: str = "") -> Any:
    return CliRunner().invoke(module.app, ["--backend", "mlx", *arguments], input=given)


def test_worker_runs_for_the_head_that_was_joined(joins: Joins) -> None:
    done = join(WHERE, "--no-api", "--memory", "2", "--max-context", "99")
    assert done.exit_code == 0, done.output
    assert joins.joined == [(WHERE, True)]
    [(worker, access)] = joins.ran
    node = f"mini/{os.getpid()}"
    assert (worker.connect, worker.node, worker.transport) == (WHERE, node, "zmq")
    assert (worker.memory, worker.max_context, worker.as_joined) == (2.0, 99, True)
    assert access.keys == {"head": HEAD.head}
    assert f"joining {WHERE} as {node}" in done.stderr
    assert "API" not in done.stderr
    assert (access.api_url, access.beside) == ("", None)


def test_clients_of_the_machine_are_told_where_the_api_is(joins: Joins) -> None:
    done = join(WHERE, "--port", "0")
    [(_, access)] = joins.ran
    assert access.api_url.startswith("http://127.0.0.1:")
    assert f"API {access.api_url}" in done.stderr
    assert access.beside is not None


async def test_head_that_is_lost_is_looked_for_where_the_network_may_be_asked(joins: Joins) -> None:
    for option in ("--no-discovery", "--discovery"):
        assert join(WHERE, "--no-api", option).exit_code == 0
    assert [looks for _, looks in joins.joined] == [False, True]
    (_, silent), (_, seeking) = joins.ran
    assert silent.seek is None
    assert seeking.seek is not None
    assert tuple(await seeking.seek(2.0)) == (WHERE, "2")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("no address",), "no address"),
        (("plx1damaged",), "code"),
        (("tcp://10.0.0.5:9000", "--label", "room"), "--label 'room' is not KEY=VALUE"),
        (("tcp://10.0.0.5:9000", "--backend", "abacus"), "abacus"),
    ],
)
def test_what_is_wrong_is_said_before_a_code_is_used_up(joins: Joins, arguments: tuple[str, ...], words: str) -> None:
    done = join(*arguments, "--no-api")
    assert isinstance(done.exception, ParallaxError), done.output
    assert words in str(done.exception)
    assert (joins.joined, joins.ran) == ([], [])


def test_code_is_read_from_standard_input(joins: Joins) -> None:
    done = join("-", "--no-api", given=f"  {WHERE} \n")
    assert done.exit_code == 0, done.output
    assert joins.joined == [(WHERE, True)]


def test_machine_that_has_joined_before_needs_no_code(joins: Joins) -> None:
    assert join("--no-api").exit_code == 0
    assert joins.joined == [("", True)]


@pytest.mark.parametrize("arguments", [(), ("-",)])
def test_machine_that_has_joined_none_needs_a_code(
    joins: Joins, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]
) -> None:
    monkeypatch.setenv("PARALLAX_HOME", str(tmp_path / "new"))
    done = join(*arguments, "--no-api", given="\n")
    assert isinstance(done.exception, ParallaxError), done.output
    assert "there is no join code" in str(done.exception)
    assert "parallax cluster codes new" in done.exception.hint
    assert joins.joined == []

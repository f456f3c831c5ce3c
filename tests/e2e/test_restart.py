"""A coordinator that is killed and started again, at another port: its machines find it, and keep their layers."""

from __future__ import annotations

import re
import subprocess
from contextlib import ExitStack
from pathlib import Path

import pytest

from parallax_cluster.membership.join_code import shorten_code
from tests.e2e.conftest import MODEL, PARALLAX, environment
from tests.e2e.test_run import ROOM, coordinating, homes, read_ready, started
from tests.e2e.test_workers import read_stream, wait_until

__all__ = ("homes",)

OPTIONS = ("--no-local", "--nodes", "2")
JOIN = ("join", "--backend", "mlx", "--port", "0", *ROOM)


def find_plan(log: Path) -> str:
    *_, last = re.finditer(r"pipeline 0 has (.*)", log.read_text())
    return last[1]


@pytest.mark.nightly
def test_machines_find_a_restarted_coordinator_and_keep_their_layers(homes: dict[str, Path], tmp_path: Path) -> None:
    first, second = tmp_path / "first.log", tmp_path / "second.log"
    logs = {name: tmp_path / f"{name}.log" for name in ("one", "two")}
    with ExitStack() as stack:
        with coordinating(homes["first"], first, *OPTIONS) as (process, code):
            for name, word in (("one", code), ("two", shorten_code(code))):
                stack.enter_context(started(homes[name], logs[name], *JOIN, word))
            whole = read_stream(read_ready(process, first), 0, lambda: None)
            assert whole[1] == "length"
        plan = find_plan(first)

        process, _ = stack.enter_context(coordinating(homes["first"], second, *OPTIONS))
        server = read_ready(process, second)
        assert find_plan(second) == plan
        assert "load " not in second.read_text(), "the layers are still loaded"
        assert read_stream(server, 0, lambda: None) == whole
        assert all(log.read_text().count("joined head=head") == 2 for log in logs.values())

        again = tmp_path / "again.log"
        stack.enter_context(started(homes["one"], again, *JOIN))
        wait_until(lambda: "joined head=head" in again.read_text())


@pytest.mark.nightly
def test_server_starts_again_where_nothing_can_be_written(homes: dict[str, Path], tmp_path: Path) -> None:
    home, log = homes["first"], tmp_path / "first.log"
    options = ("run", MODEL, "--listen", "tcp://127.0.0.1:0", "--port", "0", "--backend", "mlx")
    with started(home, log, *options) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("parallax join ")
        whole = read_stream(read_ready(process, log), 0, lambda: None)

    limited = ["sh", "-c", 'ulimit -f 0; exec "$@"', "sh", PARALLAX, *options]  # no file may grow, as on a full disk
    sinks = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(limited, text=True, env=environment(home), **sinks) as process:  # type: ignore[call-overload]
        try:
            assert process.stdout.readline().startswith("parallax worker --connect "), "there is no code"
            assert read_stream(read_ready(process, log), 0, lambda: None) == whole
            process.terminate()
            assert process.wait(30) == 0
        finally:
            process.kill()

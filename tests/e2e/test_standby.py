"""A standby takes the place of a coordinator whose machine dies: real processes, keys and weights."""

from __future__ import annotations

import re
import signal
import subprocess
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from benchmarks.slow_links import find_port
from parallax_core.cli.client import Client
from tests.e2e.conftest import PARALLAX, environment
from tests.e2e.test_run import ROOM, coordinating, homes, list_users, read_ready, started
from tests.e2e.test_workers import read_stream, wait_until

__all__ = ["homes"]


def promote(home: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [PARALLAX, "promote", *options]
    return subprocess.run(command, capture_output=True, text=True, env=environment(home), check=False)


def count_loads(log: Path) -> int:
    """Return how often a node has loaded a stage: each time the backend tests its kernels."""
    return log.read_text().count("selftest")


def says(log: Path, text: str) -> bool:
    return text in log.read_text()


def test_standby_takes_over_with_the_weights_that_are_loaded_and_the_old_coordinator_is_refused(
    homes: dict[str, Path], tmp_path: Path
) -> None:
    logs = {name: tmp_path / f"{name}.log" for name in ("first", "standby", "one", "two", "again")}
    with ExitStack() as stack:
        first, port = homes["first"], find_port()
        stage = ("--no-local", "--nodes", "2", "--listen", f"tcp://127.0.0.1:{port}")
        process, code = stack.enter_context(coordinating(first, logs["first"], *stage))
        for name in ("one", "two"):
            joining = ("join", "--backend", "mlx", "--no-api", *ROOM, code)
            stack.enter_context(started(homes[name], logs[name], *joining))
        server = read_ready(process, logs["first"])
        whole, before = read_stream(server, 0, lambda: None), list_users(server)
        assert whole[1] == "length"

        home, listen = homes["three"], ("--listen", f"tcp://127.0.0.1:{find_port()}", "--port", "0", "--no-local")
        assert "no standby runs" in promote(home).stderr
        standby = stack.enter_context(
            started(home, logs["standby"], "run", "--standby-of", code, *listen, "--nodes", "2")
        )
        wait_until(partial(says, logs["standby"], "following the coordinator"))
        wait_until(partial(says, logs["first"], "standby follows"))
        refused = promote(home)
        assert refused.returncode == 1
        assert "still answers" in refused.stderr

        loads = {name: count_loads(logs[name]) for name in ("one", "two")}
        process.kill()
        process.wait()
        wait_until(lambda: promote(home).returncode == 0)
        assert standby.stdout is not None
        assert standby.stdout.readline().startswith("parallax join ")
        successor = read_ready(standby, logs["standby"])
        assert list_users(successor) == before
        assert read_stream(successor, 0, lambda: None) == whole
        assert {name: count_loads(logs[name]) for name in loads} == loads, "the weights were there"

        again = stack.enter_context(started(first, logs["again"], "run", *_repeat(process)))
        wait_until(partial(says, logs["again"], "head listens"))
        assert again.poll() is None
        node = next(iter(before))
        assert node in {each["node"] for each in Client(successor.url).cluster()["nodes"]}
        assert read_stream(successor, 0, lambda: None) == whole
        assert successor.end(signal.SIGTERM) < 5
        assert again.wait(60) == 1, "a node told it of the newer term"
        assert re.search(r"another coordinator has taken over: its term is 2", logs["again"].read_text())


def _repeat(process: subprocess.Popen[str]) -> list[str]:
    """Return the arguments with which a coordinator was started, after ``run``."""
    assert isinstance(process.args, list)
    return [str(each) for each in process.args[2:]]

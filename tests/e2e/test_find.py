"""Pipelines without a coordinator: nodes announce their layers, and a head finds them; real processes."""

from __future__ import annotations

import os
import signal
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

from parallax_client.client import Client
from tests.e2e.conftest import MODEL, Server, make_home
from tests.e2e.test_run import coordinating, read_ready, started
from tests.e2e.test_workers import read_stream, wait_until

NAMES = ("meeting", "head", "front", "back", "spare")


@pytest.fixture
def homes(model_home: Path, tmp_path: Path) -> dict[str, Path]:
    """Return the homes of machines that have the model."""
    return {name: make_home(tmp_path / name, model_home) for name in NAMES}


def list_pids(server: Server) -> list[int]:
    """Return the processes of the stages of the pipeline that answers, in order."""
    [replica] = [each for each in Client(server.url).cluster()["replicas"] if each["status"] == "ready"]
    return [stage["pid"] for stage in replica["stages"]]


@pytest.mark.timeout(600)
def test_head_finds_nodes_by_a_code_and_a_spare_takes_over(homes: dict[str, Path], split: Path, tmp_path: Path) -> None:
    logs = {name: tmp_path / f"{name}.log" for name in NAMES}
    with ExitStack() as stack:
        listen = ("--listen", "tcp://127.0.0.1:0")
        meeting = stack.enter_context(started(homes["meeting"], logs["meeting"], "cluster", "rendezvous", *listen))
        assert meeting.stdout is not None
        code = meeting.stdout.readline().strip().rpartition("code=")[2]
        worker = ("worker", str(split), "--backend", "mlx", "--announce", code)
        pids = {
            name: stack.enter_context(started(homes[name], logs[name], *worker, "--layers", layers)).pid
            for name, layers in (("front", "0-5"), ("back", "5-12"))
        }
        find = ("serve", str(split), "--find", code, "--port", "0")
        server = read_ready(stack.enter_context(started(homes["head"], logs["head"], *find)), logs["head"])
        assert list_pids(server) == [pids["front"], pids["back"]]
        whole = read_stream(server, 0, lambda: None)
        assert whole[1] == "length"

        spare = stack.enter_context(started(homes["spare"], logs["spare"], *worker, "--layers", "5-12"))
        wait_until(lambda: "it is a spare" in logs["head"].read_text())
        meeting.kill()  # what has found each other needs no rendezvous
        assert read_stream(server, 12, partial(os.kill, pids["back"], signal.SIGKILL)) == whole
        assert list_pids(server) == [pids["front"], spare.pid]
        assert server.end(signal.SIGTERM) < 5


@pytest.mark.nightly
@pytest.mark.timeout(300)
def test_relay_is_a_place_to_meet_too(homes: dict[str, Path], tmp_path: Path) -> None:
    logs = {name: tmp_path / f"{name}.log" for name in NAMES}
    with ExitStack() as stack:
        _, code = stack.enter_context(coordinating(homes["spare"], logs["spare"], "--nodes", "2"))
        relay = ("cluster", "relay", code, "--rendezvous", "tcp://127.0.0.1:0")
        meeting = stack.enter_context(started(homes["meeting"], logs["meeting"], *relay))
        assert meeting.stdout is not None
        code = meeting.stdout.readline().strip().rpartition("code=")[2]
        announce = ("worker", MODEL, "--backend", "mlx", "--announce", code, "--layers", "0-30")
        worker = stack.enter_context(started(homes["front"], logs["front"], *announce))
        find = ("serve", MODEL, "--find", code, "--port", "0")
        server = read_ready(stack.enter_context(started(homes["head"], logs["head"], *find)), logs["head"])
        assert list_pids(server) == [worker.pid]
        wait_until(lambda: "relays for the nodes of head=head" in logs["meeting"].read_text())
        meeting.send_signal(signal.SIGTERM)
        assert meeting.wait(10) == 0

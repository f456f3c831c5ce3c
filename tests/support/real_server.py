"""A server of the real model on a real engine, for the tests that run in the engine's environment."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

PARALLAX = [sys.executable, "-P", "-m", "parallax_core"]
END_S = 20.0
ANSWER_S = 180.0
SERVICE_UNAVAILABLE = 503
SCHEMA = {"type": "object", "properties": {"city": {"enum": ["Paris", "Rome"]}}, "required": ["city"]}


def pull_model() -> Path:
    """Return the folder of SmolLM2-135M-Instruct; the variable PARALLAX_TEST_MODEL names another copy of it."""
    if found := os.environ.get("PARALLAX_TEST_MODEL"):
        return Path(found)
    command = [*PARALLAX, "models", "pull", "smollm2-135m"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=600)
    return Path(done.stdout.splitlines()[-1])


@dataclass
class RealServer:
    """A running ``parallax serve``."""

    process: subprocess.Popen[str]
    url: str
    log: Path

    @property
    def model(self) -> str:
        """The id of the model."""
        return str(self.ask("/models")["data"][0]["id"])

    def ask(self, path: str, **body: Any) -> Any:
        """Return the answer to a request: POST with a body, else GET; repeated while the server builds a pipeline."""
        data = json.dumps(body).encode() if body else None
        request = urllib.request.Request(self.url + path, data, {"Content-Type": "application/json"})
        until = time.monotonic() + ANSWER_S
        while True:
            try:
                with urllib.request.urlopen(request, timeout=ANSWER_S) as answer:
                    return json.load(answer)
            except urllib.error.HTTPError as error:
                if error.code != SERVICE_UNAVAILABLE or time.monotonic() > until:
                    raise
            time.sleep(1)

    def complete(self, **changes: Any) -> Any:
        """Return the answer to a completion request."""
        body = {"model": self.model, "prompt": "The capital of France is", "max_tokens": 16}
        return self.ask("/completions", **(body | changes))

    def continue_text(self, **changes: Any) -> str:
        """Return the text of a completion."""
        return str(self.complete(**changes)["choices"][0]["text"])

    def replica(self) -> Any:
        """Return the status of the replica."""
        return self.ask("/cluster")["replicas"][0]


@contextmanager
def serve_model(model: Path, folder: Path, backend: str, options: Sequence[str], *words: str) -> Iterator[RealServer]:
    """Serve ``model`` in float32 with a backend of this environment, its ``options`` and further words.

    The log is in ``folder``. In the end, no process of those at the beginning may be left.
    """
    command = [*PARALLAX, "serve", str(model), "--backend", backend, "--python", f"{backend}={sys.executable}"]
    command += ["--dtype", "float32", "--port", "0", *words]
    command += [word for option in options for word in ("--backend-option", option)]
    log = folder / "log"
    with log.open("w") as sink:
        process = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=sink, text=True)
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line.startswith("ready "), log.read_text()
    family = psutil.Process(process.pid).children(recursive=True)
    yield RealServer(process, line.split()[1], log)
    process.send_signal(signal.SIGTERM)
    process.wait(END_S)
    process.stdout.close()
    check_gone(family)


def check_gone(processes: Sequence[psutil.Process]) -> None:
    """Check that processes have ended, or do so soon."""
    _, alive = psutil.wait_procs(processes, timeout=END_S)
    assert [each for each in alive if each.status() != psutil.STATUS_ZOMBIE] == []


class RealPipeline:
    """Tests of two stages on an engine, each in a process of its own.

    Subclass them under a name that begins with ``Test``, and give the engine and the fixture ``model``.
    """

    backend: str
    engine: str
    """The name of the engine as stages report it."""
    options: Sequence[str]

    @pytest.fixture(scope="class")
    @classmethod
    def server(cls, model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealServer]:
        """Return the server."""
        words = ("--layers", "0-15,15-30", "--set", "memory_fraction=0.02")
        with serve_model(model, tmp_path_factory.mktemp("pipeline"), cls.backend, cls.options, *words) as server:
            yield server

    def test_two_stages_answer_a_question(self, server: RealServer) -> None:
        """Both stages are on the engine."""
        mark = f" ({self.engine}"
        assert [stage["device"].partition(mark)[1] for stage in server.replica()["stages"]] == [mark] * 2
        assert "Paris" in server.continue_text(temperature=0)

    def test_seed_repeats_its_answer(self, server: RealServer) -> None:
        """The draw is core's own."""
        first, second, other = (server.continue_text(temperature=1.5, seed=seed) for seed in (5, 5, 6))
        assert first == second != other

    def test_answer_has_the_form_that_was_asked_for(self, server: RealServer) -> None:
        """Masks reach the last stage."""
        form = {"type": "json_schema", "json_schema": {"name": "city", "schema": SCHEMA}}
        found = json.loads(server.continue_text(temperature=0, max_tokens=40, response_format=form))
        assert found["city"] in {"Paris", "Rome"}

    def test_answer_is_the_same_after_a_worker_was_killed(self, server: RealServer) -> None:
        """The second stage is replaced, with the processes of its engine."""
        before = server.continue_text(temperature=0)
        worker = psutil.Process(server.replica()["stages"][1]["pid"])
        children = worker.children(recursive=True)
        os.kill(worker.pid, signal.SIGKILL)
        assert server.continue_text(temperature=0) == before
        check_gone(children)

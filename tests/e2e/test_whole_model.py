"""A backend whose engine serves the whole model in a worker process through the command line.

The engine is core's own head over a stage of the MLX backend, so that its tokens are known: those of that backend.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from parallax_core.plugins.discovery import DISABLED_VARIABLE
from tests.e2e.conftest import END_TIMEOUT_S, Server
from tests.e2e.tiny import NUM_LAYERS, write_tiny
from tests.unit.plugins.site import OTHERS, PARALLAX, Site

PLUGIN = """
import subprocess
import sys
from dataclasses import replace

from parallax_core.api import Availability, BackendSpec, Ref, StagePlan, hookimpl


def probe():
    return Availability(ok=True, device="cpu")


class WholeBackend:
    def open_engine(self, plan):
        from functools import partial

        from parallax_backend_mlx.backend import MlxBackend
        from parallax_core.testing.stage_engine import StageEngine

        class Engine(StageEngine):
            @property
            def info(self):
                info = super().info
                return replace(info, honours=info.honours - {"logit_bias"})

        self.child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        print("child", self.child.pid, file=sys.stderr, flush=True)
        stage = StagePlan(
            model=plan.model, dtype=plan.dtype, memory_fraction=plan.memory_fraction, progress=plan.progress
        )
        return Engine([partial(MlxBackend().open_stage, stage)])


@hookimpl
def parallax_register_backends():
    return [
        BackendSpec(
            name="whole",
            summary="serves whole models",
            probe=Ref("{module}:probe"),
            factory=Ref("{module}:WholeBackend"),
            rank=-1,
            opens=("engine",),
        )
    ]
"""
OPTIONS: tuple[dict[str, Any], ...] = (
    {"logprobs": 2, "echo": True},
    {"temperature": 0.8, "seed": 7, "n": 3, "top_p": 0.9},
    {"stop": ["e", "\n"]},
    {"max_tokens": 5, "repetition_penalty": 1.2},
)
PROMPTS = ("The capital of France is", "Once upon a time", "def add(a, b):\n    return")
ASKED = list(zip((*PROMPTS, PROMPTS[0]), OPTIONS, strict=True))
TINY = "tiny"


def make_site(folder: Path) -> Site:
    site = Site(folder)
    site.install("whole", PLUGIN)
    return site


def start(site: Site, home: Path, model: Path, *options: str) -> Server:
    """Start a server with the plugin beside those that are installed."""
    log = site.folder / "log"
    environ = site.environment(PARALLAX_HOME=str(home)) | {DISABLED_VARIABLE: ""}
    command = [
        PARALLAX,
        "serve",
        str(model),
        "--port",
        "0",
        "--dtype",
        "float32",
        "--set",
        "memory_fraction=0.05",
        *options,
    ]
    with log.open("w") as sink:
        process = subprocess.Popen(
            command, cwd=site.folder, env=environ, stdout=subprocess.PIPE, stderr=sink, text=True
        )
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line.startswith("ready "), log.read_text()
    return Server(process, line.split()[1], log, [line])


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory, model_folder: Path) -> Path:
    return write_tiny(tmp_path_factory.mktemp("model") / TINY, model_folder)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, model_home: Path, tiny: Path) -> Iterator[Server]:
    """Start a server over the engine; in the end nothing is left of both."""
    server = start(make_site(tmp_path_factory.mktemp("whole")), model_home, tiny, "--backend", "whole")
    yield server
    pid = find_engine(server)["pid"]
    assert server.end(signal.SIGTERM) < END_TIMEOUT_S
    assert server.process.returncode == 0
    wait_until(lambda: all(map(is_gone, (pid, *list_children(server)))))


def ask(server: Server, path: str, **body: Any) -> Any:
    """Return the answer to a request, or to a GET without a body."""
    data = json.dumps(body).encode() if body else None
    with urllib.request.urlopen(
        urllib.request.Request(server.url + path, data, {"Content-Type": "application/json"}), timeout=120
    ) as answer:
        return json.load(answer)


def complete(server: Server, prompt: str, **body: Any) -> Any:
    return ask(server, "/completions", prompt=prompt, **{"max_tokens": 24, "temperature": 0, **body})


def find_replica(server: Server) -> Any:
    """Return the status of the replica."""
    return ask(server, "/cluster")["replicas"][0]


def find_engine(server: Server) -> Any:
    """Return the status of the engine, which counts as one stage."""
    return find_replica(server)["stages"][0]


def list_children(server: Server) -> list[int]:
    """Return the child processes that the engines have said they started."""
    return [int(number) for number in re.findall(r"^\[.+\] child (\d+)$", server.log.read_text(), re.MULTILINE)]


def is_gone(pid: int) -> bool:
    stat = Path(f"/proc/{pid}/stat")
    return not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] == "Z"


def wait_until(condition: Any, seconds: float = 60) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.05)


def test_engine_answers_like_the_pipeline(whole: Server, tmp_path: Path, model_home: Path, tiny: Path) -> None:
    server = start(make_site(tmp_path), model_home, tiny, "--backend", "mlx")
    try:
        answers = [complete(server, prompt, **options) for prompt, options in ASKED]
    finally:
        server.end(signal.SIGTERM)
    for expected, (prompt, options) in zip(answers, ASKED, strict=True):
        found = complete(whole, prompt, **options)
        assert found["choices"] == expected["choices"], options
        found["usage"].pop("prompt_tokens_details"), expected["usage"].pop("prompt_tokens_details")
        assert found["usage"] == expected["usage"], options


def test_field_that_the_engine_lacks_is_refused_by_name(whole: Server) -> None:
    with pytest.raises(urllib.error.HTTPError, match="400") as refused:
        complete(whole, "a", logit_bias={"5": 1})
    error = json.load(refused.value)["error"]
    assert error["param"] == "logit_bias"
    assert "this model's engine does not support it" in error["message"]


def test_killed_engine_ends_its_requests_and_is_started_again(whole: Server) -> None:
    before = find_engine(whole)
    child = list_children(whole)[-1]
    body = json.dumps({"model": TINY, "prompt": "a", "max_tokens": 500, "ignore_eos": True, "stream": True}).encode()
    request = urllib.request.Request(whole.url + "/completions", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        answer.readline()
        os.kill(before["pid"], signal.SIGKILL)
        rest = answer.read().decode()
    assert "the engine was lost, and is started again: its process was ended by SIGKILL" in rest
    wait_until(lambda: find_replica(whole)["status"] == "ready")
    assert complete(whole, PROMPTS[0])["usage"]["completion_tokens"] == 24
    after = find_engine(whole)
    assert (after["restarts"], after["layers"], after["backend"]) == (1, [0, NUM_LAYERS], "whole")
    assert after["pid"] != before["pid"]
    with urllib.request.urlopen(whole.url.removesuffix("/v1") + "/metrics", timeout=20) as answer:
        metrics = answer.read().decode()
    assert f'parallax_stage_restarts_total{{model="{TINY}",replica="0",stage="0"}} 1.0' in metrics
    assert f'parallax_stage_losses_total{{model="{TINY}",replica="0"}} 1.0' in metrics
    wait_until(lambda: is_gone(child))


def test_engine_outlives_no_server(tmp_path: Path, model_home: Path, tiny: Path) -> None:
    server = start(make_site(tmp_path), model_home, tiny, "--backend", "whole")
    pid, children = find_engine(server)["pid"], list_children(server)
    server.end(signal.SIGKILL)
    wait_until(lambda: all(map(is_gone, (pid, *children))))


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (("--stages", "2"), "serves whole models only"),
        (("--layers", "0-30"), "serves whole models only"),
        (("--transport", "inprocess"), "runs in a process of its own"),
        (("--listen", "tcp://127.0.0.1:0"), "runs on this machine"),
        (("--set", "batching=work-conserving:x=1"), "[serve] batching is for pipelines of stages"),
    ],
)
def test_settings_that_an_engine_cannot_honour_are_refused(
    tmp_path: Path, options: tuple[str, ...], reason: str
) -> None:
    site = make_site(tmp_path)
    environ = site.environment() | {DISABLED_VARIABLE: ",".join(each for each in OTHERS if each != "parallax-engines")}
    command = [PARALLAX, "serve", "model", "--backend", "whole", *options]
    done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert reason in done.stderr
    assert "hint: " in done.stderr


def test_engine_without_the_distribution_that_serves_it_names_it(tmp_path: Path) -> None:
    done = make_site(tmp_path).run("serve", "model", "--backend", "whole")
    assert done.returncode == 1
    assert "no kind of replicas named 'engine'" in done.stderr
    assert "hint: install it with " in done.stderr

"""``parallax serve --backend sglang --layers 0-15,15-30``: two stages on SGLang, each in a process of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

pytestmark = pytest.mark.timeout(900)

OPTIONS = ("context_length=512", "threads=1")
PARALLAX = [sys.executable, "-P", "-m", "parallax_core"]
SCHEMA = {"type": "object", "properties": {"city": {"enum": ["Paris", "Rome"]}}, "required": ["city"]}


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory, model: Path) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("pipeline")
    command = [*PARALLAX, "serve", str(model), "--backend", "sglang", "--layers", "0-15,15-30", "--dtype", "float32"]
    command += ["--python", f"sglang={sys.executable}", "--memory-fraction", "0.02", "--port", "0"]
    command += [word for option in OPTIONS for word in ("--backend-option", option)]
    with (folder / "log").open("w") as sink:
        process = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=sink, text=True)
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line.startswith("ready "), (folder / "log").read_text()
    family = psutil.Process(process.pid).children(recursive=True)
    yield line.split()[1]
    process.send_signal(signal.SIGTERM)
    process.wait(20)
    process.stdout.close()
    _, alive = psutil.wait_procs(family, timeout=20)
    assert [each for each in alive if each.status() != psutil.STATUS_ZOMBIE] == []


def ask(url: str, path: str, **body: Any) -> Any:
    data = json.dumps(body).encode() if body else None
    request = urllib.request.Request(url + path, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=180) as answer:
        return json.load(answer)


def list_stages(url: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = ask(url, "/cluster")["replicas"][0]["stages"]
    return found


def complete(url: str, **changes: Any) -> str:
    body = {"model": ask(url, "/models")["data"][0]["id"], "prompt": "The capital of France is", "max_tokens": 16}
    return str(ask(url, "/completions", **(body | changes))["choices"][0]["text"])


def test_two_stages_answer_a_question(url: str) -> None:
    assert [stage["device"].partition(" (SGLang")[1] for stage in list_stages(url)] == [" (SGLang"] * 2
    assert "Paris" in complete(url, temperature=0)


def test_seed_repeats_its_answer(url: str) -> None:
    first, second, other = (complete(url, temperature=1.5, seed=seed) for seed in (5, 5, 6))
    assert first == second != other


def test_answer_has_the_form_that_was_asked_for(url: str) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "city", "schema": SCHEMA}}
    found = json.loads(complete(url, temperature=0, max_tokens=40, response_format=form))
    assert found["city"] in {"Paris", "Rome"}


@pytest.mark.parametrize("victim", ["child of SGLang", "worker"])
def test_answer_is_the_same_after_a_process_was_killed(url: str, victim: str) -> None:
    before = complete(url, temperature=0)
    worker = psutil.Process(list_stages(url)[1]["pid"])
    [child] = worker.children()
    os.kill(worker.pid if victim == "worker" else child.pid, signal.SIGKILL)
    assert complete(url, temperature=0) == before
    _, alive = psutil.wait_procs([child], timeout=20)
    assert [each for each in alive if each.status() != psutil.STATUS_ZOMBIE] == []

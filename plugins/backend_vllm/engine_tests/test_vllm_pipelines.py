"""``parallax serve --backend vllm --layers 0-15,15-30``: two stages on vLLM, each in a worker process."""

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

import pytest

PARALLAX = str(Path(sys.executable).with_name("parallax"))
MODEL = "smollm2-135m"
OPTIONS = ("max_model_len=512", "threads=1")
BODY = {"model": MODEL, "prompt": "The capital of France is", "max_tokens": 16}

pytestmark = pytest.mark.ci


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory, model_folder: Path) -> Iterator[str]:
    del model_folder  # it is fetched
    folder = tmp_path_factory.mktemp("pipeline")
    command = [PARALLAX, "serve", MODEL, "--backend", "vllm", "--layers", "0-15,15-30", "--dtype", "float32"]
    command += ["--python", f"vllm={sys.executable}", "--memory-fraction", "0.02", "--port", "0"]
    command += [word for option in OPTIONS for word in ("--backend-option", option)]
    with (folder / "log").open("w") as sink:
        process = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=sink, text=True)
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line.startswith("ready "), (folder / "log").read_text()
    yield line.split()[1]
    process.send_signal(signal.SIGTERM)
    process.wait(20)
    process.stdout.close()


def ask(url: str, path: str, **body: Any) -> Any:
    data = json.dumps(body).encode() if body else None
    request = urllib.request.Request(url + path, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=180) as answer:
        return json.load(answer)


def list_stages(url: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = ask(url, "/cluster")["replicas"][0]["stages"]
    return found


def complete(url: str, **changes: Any) -> str:
    return str(ask(url, "/completions", **(BODY | changes))["choices"][0]["text"])


def test_two_stages_answer_a_question(url: str) -> None:
    assert [stage["device"].partition(" (vLLM")[1] for stage in list_stages(url)] == [" (vLLM"] * 2
    assert "Paris" in complete(url, temperature=0)


def test_seed_repeats_its_answer(url: str) -> None:
    first, second, other = (complete(url, temperature=1.5, seed=seed) for seed in (5, 5, 6))
    assert first == second != other


def test_answer_is_the_same_after_a_stage_was_killed(url: str) -> None:
    before = complete(url, temperature=0)
    stage = list_stages(url)[1]
    os.kill(stage["pid"], signal.SIGKILL)
    assert complete(url, temperature=0) == before

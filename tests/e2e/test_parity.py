"""The tokens are those of an independent implementation; the long form runs under ``make evidence``."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.conftest import ROOT

PROMPTS, TOKENS = 10, 8
PART = "3 stages, 8 at once, cached"


@pytest.mark.nightly
def test_greedy_tokens_are_those_of_transformers(model_folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "parity.json"
    sizes = ["--prompts", str(PROMPTS), "--tokens", str(TOKENS), "--out", str(out)]
    command = [sys.executable, "-m", "benchmarks.parity", "stage", "--model", str(model_folder), *sizes]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=170, check=False)
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
    [found] = json.loads(out.read_text())["parts"].values()
    assert (found["prompts"], found["tokens"], found["passed"]) == (PROMPTS, TOKENS, True)


def test_tokens_of_three_stages_together_and_cached_are_those_of_transformers(
    model_folder: Path, tmp_path: Path
) -> None:
    out = tmp_path / "stages.json"
    sizes = ["--prompts", "2", "--tokens", "6", "--parts", PART, "--out", str(out)]
    command = [sys.executable, "-m", "benchmarks.parity", "stages", "--model", str(model_folder), *sizes]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=170, check=False)
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
    parts = json.loads(out.read_text())["parts"]
    assert {name: (part["passed"], part["cached_tokens"] > 0) for name, part in parts.items()} == {PART: (True, True)}

"""Fixtures of the tests that run in an environment with SGLang, which `make engines` makes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from parallax_backend_sglang.backend import SglangBackend
from parallax_backend_sglang.engine import SglangEngine
from parallax_core.api import EnginePlan

OPTIONS = {"context_length": 512, "max_total_tokens": 4096, "threads": 1}


def pytest_configure(config: pytest.Config) -> None:
    """Tolerate warnings from SGLang and what it imports; those from this project remain errors."""
    config.addinivalue_line("filterwarnings", "default")
    config.addinivalue_line("filterwarnings", "error:::parallax_")
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def model() -> Path:
    """Return the folder of SmolLM2-135M-Instruct; the variable PARALLAX_TEST_MODEL names another copy of it."""
    if found := os.environ.get("PARALLAX_TEST_MODEL"):
        return Path(found)
    command = [sys.executable, "-P", "-m", "parallax_core", "models", "pull", "smollm2-135m"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
    return Path(done.stdout.splitlines()[-1])


@pytest.fixture(scope="session")
def open_engine() -> Callable[..., SglangEngine]:
    """Return a function that opens an engine for a model folder, with further options, not started."""
    return make_engine


def make_engine(model: Path, **options: Any) -> SglangEngine:
    """Return an engine in float32 that is not started."""
    return SglangBackend().open_engine(
        EnginePlan(model=model, dtype="float32", device="cpu", max_running=8, options={**OPTIONS, **options})
    )

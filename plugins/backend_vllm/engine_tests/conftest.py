"""Fixtures of the tests that run in an environment with vLLM, which `make engines` makes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from parallax_backend_vllm.backend import VllmBackend
from parallax_backend_vllm.engine import VllmEngine
from parallax_core.api import EnginePlan
from parallax_core.testing.shared_engine import SharedEngine

MODEL = "smollm2-135m"
OPTIONS = {"max_model_len": 2048, "kv_cache_gb": 1.0, "threads": 1}


def pytest_configure(config: pytest.Config) -> None:
    """Tolerate warnings from vLLM and what it imports; those from this project remain errors."""
    config.addinivalue_line("filterwarnings", "default")
    config.addinivalue_line("filterwarnings", "error:::parallax_")


def make_engine(folder: Path, **options: object) -> VllmEngine:
    """Return an engine for the model in float32, not started."""
    plan = EnginePlan(model=folder, dtype="float32", max_running=32, options={**OPTIONS, **options})
    return VllmBackend().open_engine(plan)


@pytest.fixture(scope="session")
def model_folder() -> Path:
    """Return the folder of the real model; it is fetched first."""
    parallax = str(Path(sys.executable).with_name("parallax"))
    done = subprocess.run([parallax, "models", "pull", MODEL], check=True, capture_output=True, text=True, timeout=600)
    return Path(done.stdout.strip())


@pytest.fixture(scope="session")
def tokenizer(model_folder: Path) -> Tokenizer:
    """Return the tokenizer of the model."""
    return Tokenizer.from_file(str(model_folder / "tokenizer.json"))


@pytest.fixture(scope="session")
def open_engine(model_folder: Path) -> Callable[..., VllmEngine]:
    """Return a function that opens an engine with further options, not started."""
    return partial(make_engine, model_folder)


@pytest.fixture(scope="session")
def shared(model_folder: Path) -> Iterator[SharedEngine]:
    """Return an engine that is started once for all tests."""
    engine = SharedEngine(lambda: make_engine(model_folder))
    yield engine
    engine.close()

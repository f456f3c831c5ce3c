"""Fixtures of the tests that run in an environment with SGLang, which `make engines` makes."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from parallax_backend_sglang import backend
from parallax_backend_sglang.backend import SglangBackend
from parallax_backend_sglang.engine import SglangEngine
from parallax_backend_sglang.environment import make_environment, make_folder, remove_folder
from parallax_core.api import EnginePlan
from tests.support.real_server import pull_model

LAYERS = 4
END_S = 10.0
BASE = {
    "vocab_size": 97,
    "hidden_size": 64,
    "intermediate_size": 48,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "max_position_embeddings": 256,
    "initializer_range": 0.3,
    "rope_parameters": {"rope_type": "default", "rope_theta": 250.0},
    "bos_token_id": 1,
    "eos_token_id": 2,
    "tie_word_embeddings": False,
}
OPTIONS = {"context_length": 512, "max_total_tokens": 4096, "threads": 1}


def pytest_configure(config: pytest.Config) -> None:
    """Tolerate warnings from SGLang and what it imports; those from this project remain errors."""
    config.addinivalue_line("filterwarnings", "default")
    config.addinivalue_line("filterwarnings", "error:::parallax_")
    warnings.simplefilter("default")  # for what is found when the process ends, as lines of the configuration are not
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def model() -> Path:
    """Return the folder of the real model."""
    return pull_model()


@pytest.fixture(scope="session")
def open_engine() -> Callable[..., SglangEngine]:
    """Return a function that opens an engine for a model folder, with further options, not started."""
    return make_engine


def make_engine(model: Path, **options: Any) -> SglangEngine:
    """Return an engine in float32 that is not started."""
    return SglangBackend().open_engine(
        EnginePlan(model=model, dtype="float32", device="cpu", max_running=8, options={**OPTIONS, **options})
    )


class Forker:
    """A process that has imported SGLang, and forks the child processes of stages."""

    def __init__(self) -> None:
        self.folder = make_folder()
        self.link, theirs = socket.socketpair()
        script = str(Path(__file__).with_name("fork_children.py"))
        environment = make_environment(self.folder, on_cpu=True, threads=1)
        with theirs:
            command = [sys.executable, "-P", script, str(theirs.fileno())]
            self.process = subprocess.Popen(command, env=environment, pass_fds=[theirs.fileno()])

    def close(self) -> None:
        self.link.close()
        self.process.wait(6 * END_S)
        remove_folder(self.folder)


class ForkedProcess:
    """The child process of a stage, forked; see `parallax_backend_sglang.process.StageProcess`."""

    def __init__(self, forker: Forker) -> None:
        self.folder = make_folder()
        self.link, theirs = socket.socketpair()
        with theirs:
            socket.send_fds(forker.link, [self.folder.encode()], [theirs.fileno()])
        self.pid = int.from_bytes(forker.link.recv(8))

    def explain(self) -> str:
        return "the forked process has ended"

    def end(self) -> None:
        self.link.shutdown(socket.SHUT_RDWR)
        until = time.monotonic() + END_S
        with suppress(ProcessLookupError):
            while time.monotonic() < until:
                os.kill(self.pid, signal.SIGKILL)
                time.sleep(0.01)
        remove_folder(self.folder)


@pytest.fixture(scope="session")
def fork_stages() -> Iterator[None]:
    """Fork the child processes of stages, which then need not import SGLang each."""
    forker = Forker()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(backend, "StageProcess", lambda **_: ForkedProcess(forker))
        yield
    forker.close()


@pytest.fixture(scope="session")
def find_model(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Return a function that makes a tiny random model of a family, once."""

    @cache
    def find(kind: str, *, is_tied: bool = False) -> Path:
        folder = tmp_path_factory.mktemp("families") / kind
        torch.manual_seed(0)
        config = transformers.AutoConfig.for_model(kind, **deepcopy(BASE | {"tie_word_embeddings": is_tied}))
        transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(folder)
        return folder

    return find

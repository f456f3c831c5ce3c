"""Machines that load different files of the real model: bfloat16 on torch, 4 bits of mlx-lm on MLX.

A pipeline over both answers as its two halves do in one process. What becomes of answers after a loss is tested in
``plugins/cluster/tests/node/coordinator/test_variant_engine.py``, without processes.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import mlx_lm
import openai
import pytest
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM

from parallax_client.client import Client
from parallax_core.api import Draw, LayerRange, Open, Row, Sampling, SeqId, SequenceSpec, Stage, StageBatch, StagePlan
from parallax_core.models.stages import open_stage
from parallax_core.plugins.host import PluginHost
from tests.e2e.conftest import Server, make_home
from tests.e2e.test_run import read_ready, started
from tests.e2e.test_workers import wait_until

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning"),
]
PROMPT = [504, 2365, 6354, 335, 260, 5575, 314]
LENGTH = 48
ROOM = ("--memory", "0.33")
"""Less than the model takes with the pages of a request, and more than half of it in float32."""
OTHER = {"torch": "mlx", "mlx": "torch"}


@pytest.fixture(scope="module")
def folders(model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The model in bfloat16, and in 4 bits as mlx-lm writes it, by the backend that loads it."""
    folder = tmp_path_factory.mktemp("variants")
    plain, small = folder / "plain", folder / "small"
    model = AutoModelForCausalLM.from_pretrained(model_folder, dtype="bfloat16")
    model.save_pretrained(plain)
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        (plain / name).write_bytes((model_folder / name).read_bytes())
    mlx_lm.convert(str(plain), str(small), quantize=True)
    return {"torch": plain, "mlx": small}


@pytest.fixture
def cluster(folders: dict[str, Path], model_home: Path, tmp_path: Path) -> Iterator[Cluster]:
    with ExitStack() as stack:
        yield Cluster(folders, model_home, tmp_path, stack)


class Cluster:
    """A head and the machines that join it, each with a backend."""

    def __init__(self, folders: dict[str, Path], home: Path, folder: Path, stack: ExitStack) -> None:
        self.folders, self._home, self._folder, self._stack = folders, home, folder, stack
        self.log = folder / "head.log"
        self._code = ""

    def start(self, backend: str, *options: str) -> subprocess.Popen[str]:
        """Start the head, whose own machine has a backend."""
        address = ("--listen", "tcp://127.0.0.1:0", "--port", "0", "--dtype", "float32")
        variant = ("--variant", f"mlx={self.folders['mlx']}")
        command = ("run", str(self.folders["torch"]), *address, "--no-local", *variant, *options)
        process = self._stack.enter_context(started(make_home(self._folder / "head", self._home), self.log, *command))
        assert process.stdout is not None
        self._code = process.stdout.readline().split()[2]
        self.join(backend)
        return process

    def join(self, backend: str) -> subprocess.Popen[Any]:
        number = len(list(self._folder.glob("node*")))
        home = make_home(self._folder / f"node{number}", self._home)
        allow = [part for folder in self.folders.values() for part in ("--allow-model", str(folder))]
        command = ("join", self._code, "--backend", backend, *ROOM, *allow)
        return self._stack.enter_context(started(home, self._folder / f"log{number}", *command))


def ask(server: Server, kill: Callable[[], None] = lambda: None) -> str:
    """Return the text of an answer; ``kill`` is called in the midst of it."""
    text = ""
    with openai.OpenAI(base_url=server.url, api_key="x", max_retries=0) as client:
        model = client.models.list().data[0].id
        chunks = client.completions.create(model=model, prompt=PROMPT, temperature=0, max_tokens=LENGTH, stream=True)
        for number, chunk in enumerate(chunks):
            if number == LENGTH // 4:
                kill()
            text += chunk.choices[0].text
    return text


def list_stages(server: Server) -> list[dict[str, Any]]:
    [replica] = Client(server.url).cluster()["replicas"]
    found: list[dict[str, Any]] = replica["stages"]
    return found


def answer_in_one_process(folders: dict[str, Path], stages: list[dict[str, Any]]) -> list[int]:
    """Return the tokens that stages on the same backends, with the same files, draw in this process."""
    host = PluginHost.prepare()
    opened: list[Stage] = []
    for stage in stages:
        plan = StagePlan(
            model=folders[stage["backend"]],
            layers=LayerRange(*stage["layers"]),
            dtype="float32",
            memory_fraction=0.02,
        )
        opened.append(open_stage(host, host.backends().get(stage["backend"]), plan))
    tokens = list(PROMPT)
    for each in opened:
        each.edit([Open(SeqId(1), SequenceSpec(prompt_length=len(PROMPT), sampling=Sampling(temperature=0)))])
    start = 0
    while len(tokens) < len(PROMPT) + LENGTH:
        hidden: tuple[Any, ...] = ()
        for each in opened:
            draws = (Draw(len(tokens) - start - 1),) if each is opened[-1] else ()
            row = Row(SeqId(1), start, tuple(tokens[start:]), draws)
            result = each.step(StageBatch((row,), hidden)).wait()
            hidden = result.tensors
        start = len(tokens)
        tokens += result.answers[0].tokens  # type: ignore[union-attr]
    for each in opened:
        each.close()
    return tokens[len(PROMPT) :]


@pytest.mark.parametrize("first", ["torch", "mlx"])
def test_mixed_pipeline_answers_as_its_halves_in_one_process(cluster: Cluster, first: str) -> None:
    process = cluster.start(first, "--mix-weights", "--nodes", "2")
    other = cluster.join(OTHER[first])
    server = read_ready(process, cluster.log)
    stages = list_stages(server)
    assert {stage["backend"]: stage["weights"] for stage in stages} == {"torch": "plain", "mlx": "small"}
    with openai.OpenAI(base_url=server.url, api_key="x") as client:
        assert client.models.list().data[0].model_extra["weights"] == ["plain", "small"]  # type: ignore[index]
    assert "small on mlx; pipelines may mix them" in cluster.log.read_text()
    tokens = answer_in_one_process(cluster.folders, stages)
    text = ask(server)
    assert text == Tokenizer.from_file(str(cluster.folders["torch"] / "tokenizer.json")).decode(tokens)

    cluster.join(OTHER[first])
    wait_until(lambda: len(Client(server.url).cluster()["nodes"]) == 3)
    assert ask(server, partial(os.kill, other.pid, signal.SIGKILL)) == text
    assert len(Client(server.url).cluster()["nodes"]) == 2
    assert [stage["weights"] for stage in list_stages(server)] == [stage["weights"] for stage in stages]
    assert ask(server) == text


def test_files_are_not_mixed_unless_that_is_asked_for(cluster: Cluster) -> None:
    cluster.start("torch")
    cluster.join("mlx")
    wait_until(lambda: "no form of the weights holds the model by itself (--mix-weights" in cluster.log.read_text())

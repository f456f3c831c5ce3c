"""Workers whose copies of a model differ are not served together: real processes, and weights read by real backends."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import openai
import pytest

from parallax_core.checkpoint.reader import find_locations
from tests.e2e.conftest import PARALLAX, environment
from tests.e2e.tiny import write_tiny

PATIENCE_S = 120.0
TENSOR = "model.layers.4.self_attn.q_proj.weight"
TWO_STAGES = ("--layers", "0-3,3-6")
TWO_REPLICAS = ("--data-parallel", "2")

Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture(scope="module")
def original(model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny(tmp_path_factory.mktemp("original") / "model", model_folder)


@pytest.fixture(scope="module")
def tuned(original: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same but for one number of one tensor; the files have the same sizes and headers."""
    folder = tmp_path_factory.mktemp("tuned") / "model"
    shutil.copytree(original, folder)
    path = folder / "model.safetensors"
    [place] = [place for place in find_locations(path) if place.name == TENSOR]
    data = bytearray(path.read_bytes())
    data[place.start + 2] ^= 1
    path.write_bytes(data)
    return folder


@pytest.fixture
def start(model_home: Path, tmp_path: Path) -> Iterator[Start]:
    """Start commands of Parallax that find a folder as ``./model``, and end them."""
    processes: list[subprocess.Popen[str]] = []

    def run(folder: Path, *command: str) -> subprocess.Popen[str]:
        with (tmp_path / f"log{len(processes)}").open("w") as log:
            process = subprocess.Popen(
                [PARALLAX, *command],
                cwd=folder.parent,
                env=environment(model_home),
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        processes.append(process)
        return process

    yield run
    for process in processes:
        process.kill()
        process.communicate()


def serve(start: Start, folders: list[Path], tmp_path: Path, *options: str) -> subprocess.Popen[str]:
    """Start a server whose own copy is in the first folder, and a worker with each of the others, in this order."""
    address = f"ipc://{tmp_path}/head.sock"
    server = start(folders[0], "serve", "./model", "--port", "0", "--listen", address, *options)
    for number, folder in enumerate(folders[1:], 1):
        start(folder, "worker", "--connect", address, "--node", f"n{number}", "--allow-model", "*", "--backend", "mlx")
        wait_for(tmp_path / f"log{number}", "joined head")
    return server


def wait_for(log: Path, text: str) -> None:
    limit = time.monotonic() + PATIENCE_S
    while text not in log.read_text():
        assert time.monotonic() < limit, log.read_text()
        time.sleep(0.05)


@pytest.mark.parametrize("options", [TWO_STAGES, pytest.param(TWO_REPLICAS, marks=pytest.mark.nightly)])
def test_worker_with_a_fine_tuned_layer_is_named_and_nothing_is_served(
    start: Start, original: Path, tuned: Path, tmp_path: Path, options: tuple[str, ...]
) -> None:
    server = serve(start, [original, original, tuned], tmp_path, *options)
    output, _ = server.communicate(timeout=PATIENCE_S)
    assert (server.returncode, output) == (1, "")
    log = (tmp_path / "log0").read_text()
    where = f"stage {1 if options == TWO_STAGES else 0} on node 'n2'"
    assert f"error: {where} has other weights than this server's copy: they differ in layers 4-5\n" in log
    assert "hint: give all nodes the same model" in log
    assert "Traceback" not in log
    wait_for(tmp_path / "log2", "has other weights than this server's copy")


def test_workers_with_copies_of_one_model_serve(start: Start, original: Path, tuned: Path, tmp_path: Path) -> None:
    """And a worker may differ in a layer that it does not run."""
    server = serve(start, [original, tuned, original], tmp_path, *TWO_STAGES)
    assert server.stdout is not None
    line = server.stdout.readline()
    assert line.startswith("ready "), (tmp_path / "log0").read_text()
    with openai.OpenAI(base_url=line.split()[1], api_key="x", max_retries=0) as client:
        answer = client.completions.create(model="model", prompt="Once upon", max_tokens=3, temperature=0)
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 3

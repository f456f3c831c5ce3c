"""Nodes that fetch only their own layers from a hub, and serve a model that none of them has as a whole."""

from __future__ import annotations

import contextlib
import re
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import openai
import pytest

from tests.e2e.conftest import END_TIMEOUT_S, PARALLAX, START_TIMEOUT_S, Server, environment, start_server
from tests.e2e.tiny import NUM_LAYERS, write_tiny
from tests.support.fakehub import FakeHub

NAME = "tiny/model"
WEIGHTS = "model.safetensors"
CUT = NUM_LAYERS // 2


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory, model_folder: Path) -> Mapping[str, bytes]:
    folder = write_tiny(tmp_path_factory.mktemp("model") / "tiny", model_folder)
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture
def hub(files: Mapping[str, bytes]) -> Iterator[FakeHub]:
    with FakeHub() as hub:
        hub.add(NAME, files)
        yield hub


def ask(server: Server) -> str:
    with openai.OpenAI(base_url=server.url, api_key="none", max_retries=0, timeout=60) as client:
        asked = client.completions.create(model=NAME, prompt="a b c", max_tokens=8, temperature=0, seed=1)
    return asked.choices[0].text


def list_models(home: Path, *arguments: str) -> str:
    command = [PARALLAX, "models", *(arguments or ("list",))]
    done = subprocess.run(command, env=environment(home), capture_output=True, text=True, timeout=60, check=True)
    return " ".join(done.stdout.split())


@contextmanager
def worker(home: Path, log: Path, address: str, **changes: str) -> Iterator[None]:
    command = [PARALLAX, "worker", "--backend", "mlx", "--connect", address, "--node", home.name]
    with log.open("w") as sink:
        process = subprocess.Popen(command, stderr=sink, env=environment(home, **changes))
    try:
        yield
    finally:
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(END_TIMEOUT_S + 10)
        process.kill()
        process.wait()


@contextmanager
def head(home: Path, log: Path, sockets: Path, **changes: str) -> Iterator[subprocess.Popen[str]]:
    """Start a server that waits for two workers, with half the layers each."""
    command = [PARALLAX, "serve", NAME, "--port", "0", "--listen", f"ipc://{sockets}/head"]
    with log.open("w") as sink:
        process = subprocess.Popen(
            [*command, "--layers", f"0-{CUT},{CUT}-{NUM_LAYERS}"],
            stdout=subprocess.PIPE,
            stderr=sink,
            text=True,
            env=environment(home, **changes),
        )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.mark.nightly
def test_stages_of_one_machine_fetch_the_model_together(hub: FakeHub, tmp_path: Path) -> None:
    home = tmp_path / "home"
    server = start_server(home, tmp_path / "log", "--stages", "2", model=NAME, HF_ENDPOINT=hub.endpoint)
    try:
        answer = ask(server)
    finally:
        server.end(signal.SIGTERM)
    assert f"hf:{NAME}" in list_models(home)
    assert "LAYERS FOLDER" in list_models(home)
    assert re.search(rf"hf:{NAME} \d+ MB all ", list_models(home))
    assert hub.num_sent == sum(map(len, hub.repos[NAME].commits[hub.repos[NAME].branches["main"]].values()))
    alone = start_server(home, tmp_path / "log", model=NAME)
    try:
        assert ask(alone) == answer
    finally:
        alone.end(signal.SIGTERM)


@pytest.fixture
def sockets() -> Iterator[Path]:
    """Return a folder with a path so short that sockets can be in it."""
    with TemporaryDirectory(prefix="parallax-") as folder:
        yield Path(folder)


def test_each_machine_has_only_its_own_layers(hub: FakeHub, tmp_path: Path, sockets: Path) -> None:
    """The head has no weights at all, and two nodes with folders of their own have half the layers each."""
    log = tmp_path / "log"
    homes = {name: tmp_path / name for name in ("head", "one", "two")}
    with head(homes["head"], log, sockets, HF_ENDPOINT=hub.endpoint) as process:
        address = wait_for(log, r"head listens at (\S+)")
        with (
            worker(homes["one"], tmp_path / "log-one", address, HF_ENDPOINT=hub.endpoint),
            worker(homes["two"], tmp_path / "log-two", address, HF_ENDPOINT=hub.endpoint),
        ):
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line.startswith("ready "), log.read_text()
            assert ask(Server(process, line.split()[1], log))
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=END_TIMEOUT_S + 10)
    shown = {name: list_models(home) for name, home in homes.items()}
    assert re.search(rf"hf:{NAME} \d+ of \d+ MB none of {NUM_LAYERS} ", shown["head"])
    [folder] = homes["head"].glob("models/hf/*/config.json")
    assert not list(folder.parent.glob(f"{WEIGHTS}*"))
    halves = {re.search(rf" (\d-\d) of {NUM_LAYERS} ", shown[name])[1] for name in ("one", "two")}  # type: ignore[index]
    assert halves == {f"0-{CUT}", f"{CUT}-{NUM_LAYERS}"}


@pytest.mark.nightly
def test_machine_that_fetched_another_revision_is_refused(
    hub: FakeHub, files: Mapping[str, bytes], tmp_path: Path, sockets: Path
) -> None:
    """Though the two have no layer in common, and the head has none at all."""
    log, other = tmp_path / "log", bytearray(files[WEIGHTS])
    other[-1] ^= 1
    with head(tmp_path / "head", log, sockets, HF_ENDPOINT=hub.endpoint) as process:
        address = wait_for(log, r"head listens at (\S+)")
        with worker(tmp_path / "one", tmp_path / "log-one", address, HF_ENDPOINT=hub.endpoint):
            while not list((tmp_path / "one").glob(f"models/hf/*/{WEIGHTS}")):
                assert process.poll() is None, log.read_text()
                time.sleep(0.05)
            hub.add(NAME, {**files, WEIGHTS: bytes(other)})
            with worker(tmp_path / "two", tmp_path / "log-two", address, HF_ENDPOINT=hub.endpoint):
                output, _ = process.communicate(timeout=START_TIMEOUT_S)
    assert (process.returncode, output) == (1, "")
    reason = f"on node 'two' has other weights than this server's copy: they differ in {WEIGHTS}"
    assert reason in log.read_text()


def wait_for(log: Path, pattern: str) -> str:
    """Return what ``pattern`` finds in a log, once it does."""
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        if found := re.search(pattern, log.read_text()):
            return found[1]
        time.sleep(0.05)
    pytest.fail(f"{pattern!r} is not in the log:\n{log.read_text()}")

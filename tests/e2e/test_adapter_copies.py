"""LoRA adapters that are loaded at the head reach the stages of other machines, each with a home of its own."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import pytest

from tests.e2e.conftest import PARALLAX, AdapterFiles, Server, environment, make_home
from tests.e2e.test_adapters import PROMPTS, ask_all, get, post, stream
from tests.e2e.test_join import make_code, run
from tests.e2e.test_workers import wait_until
from tests.e2e.tiny import NUM_LAYERS

CUT = 2


@contextmanager
def start(home: Path, log: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    with log.open("w") as sink:
        command = [PARALLAX, *arguments]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=sink, text=True, env=environment(home))
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def has_joined(log: Path) -> bool:
    return "joined head=" in log.read_text()


@pytest.fixture
def homes(model_home: Path, tmp_path: Path) -> dict[str, Path]:
    """Return the homes of machines, none of which has an adapter."""
    made = {name: make_home(tmp_path / name, model_home) for name in ("server", "one", "two", "late")}
    for home in made.values():
        (home / "cache").unlink()
    assert run(made["server"], "keys", "new").returncode == 0
    return made


def answer_merged(home: Path, model: Path, log: Path) -> list[str]:
    """Return the answers of a model with an adapter merged into it."""
    with start(home, log, "serve", str(model), "--backend", "torch", "--dtype", "float32", "--port", "0") as process:
        assert process.stdout is not None
        return ask_all(Server(process, process.stdout.readline().split()[1], log), [""])


def list_copies(home: Path) -> set[str]:
    """Return the files of adapters on a machine."""
    return {path.name for path in home.glob("cache/adapters/*/*.safetensors")}


@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_adapter_reaches_stages_of_other_machines_and_one_that_takes_over(
    homes: dict[str, Path], adapter_files: AdapterFiles, tmp_path: Path
) -> None:
    model, adapters = adapter_files.model, adapter_files.adapters
    with ExitStack() as stack:
        layers = f"0-{CUT},{CUT}-{NUM_LAYERS}"
        listen = ("--layers", layers, "--listen", "tcp://127.0.0.1:0", "--port", "0", "--dtype", "float32")
        before = ("--adapter", f"before={adapters[0]}")
        log = tmp_path / "log"
        head = stack.enter_context(start(homes["server"], log, "serve", str(model), *listen, *before))
        wait_until(lambda: "head listens at" in log.read_text())
        code = make_code(homes["server"], "--uses", "3")
        join = ("join", "--backend", "torch", "--allow-model", str(model), code)
        nodes = {
            name: stack.enter_context(start(homes[name], tmp_path / f"{name}.log", *join)) for name in ("one", "two")
        }
        assert head.stdout is not None
        server = Server(head, head.stdout.readline().split()[1], log)
        status, text = post(server, "/load_lora_adapter", lora_name="mine", lora_path=str(adapters[1]))
        assert (status, text) == (200, "Success: LoRA adapter 'mine' added successfully.")
        parts = [list_copies(homes[name]) for name in ("one", "two")]
        assert sorted(map(len, parts)) == [CUT, NUM_LAYERS - CUT], "each has its own layers"
        assert not set.intersection(*parts)

        wanted = answer_merged(homes["server"], adapter_files.merged, tmp_path / "merged.log")[0]
        assert stream(server, "mine", PROMPTS[0]) == wanted
        assert stream(server, "before", PROMPTS[0]) != wanted

        stack.enter_context(start(homes["late"], tmp_path / "late.log", *join))
        wait_until(lambda: has_joined(tmp_path / "late.log"))
        assert stream(server, "mine", PROMPTS[0], nodes["two"].kill) == wanted, "nothing is lost"
        assert list_copies(homes["late"]) == list_copies(homes["two"])

        assert post(server, "/unload_lora_adapter", lora_name="mine")[0] == 200
        assert post(server, "/unload_lora_adapter", lora_name="before")[0] == 200
        wait_until(lambda: not list_copies(homes["late"]) and not list_copies(homes["one"]))


@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_stages_of_torch_and_mlx_and_torch_answer_as_merged_weights(
    homes: dict[str, Path], adapter_files: AdapterFiles, tmp_path: Path
) -> None:
    backends = {"one": "torch", "two": "mlx", "late": "torch"}
    with ExitStack() as stack:
        log, model = tmp_path / "log", str(adapter_files.model)
        layers = f"0-{CUT},{CUT}-{CUT + 1},{CUT + 1}-{NUM_LAYERS}"
        listen = ("--layers", layers, "--listen", "tcp://127.0.0.1:0", "--port", "0", "--dtype", "float32")
        named = ("--adapter", f"first={adapter_files.adapters[0]}", "--adapter", f"again={adapter_files.adapters[1]}")
        head = stack.enter_context(start(homes["server"], log, "serve", model, *listen, *named))
        wait_until(lambda: "head listens at" in log.read_text())
        code = make_code(homes["server"], "--uses", "3")
        for name, backend in backends.items():
            joined, join = tmp_path / f"{name}.log", ("join", "--backend", backend, "--allow-model", model, code)
            stack.enter_context(start(homes[name], joined, *join))
            wait_until(partial(has_joined, joined))
        assert head.stdout is not None
        server = Server(head, head.stdout.readline().split()[1], log)
        for number, name in enumerate(("zero", "one", "two")):
            path = str(adapter_files.adapters[number])
            assert post(server, "/load_lora_adapter", lora_name=name, lora_path=path)[0] == 200
        wanted = answer_merged(homes["server"], adapter_files.merged, tmp_path / "merged.log")
        base = get(server, "/models")["data"][0]["id"]
        found = ask_all(server, ["one", base, "zero", "two", "again", "first"])  # several in a batch
        assert found[:3] == wanted
        assert found[12:15] == wanted, "another name of the same adapter"
        assert found[6:9] == found[15:]
        assert len(set(found)) == 12
        stages = get(server, "/cluster")["replicas"][0]["stages"]
        assert [stage["backend"] for stage in stages] == ["torch", "mlx", "torch"]

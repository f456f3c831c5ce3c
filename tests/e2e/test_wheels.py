"""What is built installs, and works where there is no checkout."""

from __future__ import annotations

import ctypes
import json
import os
import platform
import signal
import subprocess
import tomllib
import urllib.request
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.e2e.conftest import PROJECTS, VERSION, environment

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(600)]

Run = Callable[..., str]


@pytest.fixture
def run(bin_folder: Path, tmp_path: Path) -> Run:
    """Run a script of the environment in a folder without anything in it, and return what it printed."""

    def run(script: str, *arguments: str) -> str:
        command = [str(bin_folder / script), *arguments]
        bare = {"HOME": str(tmp_path), "PATH": os.environ["PATH"], "PARALLAX_HOME": str(tmp_path / "home")}
        ran = subprocess.run(command, cwd=tmp_path, env=bare, capture_output=True, text=True, check=False)
        assert ran.returncode == 0, ran.stderr
        return str(ran.stdout)

    return run


def test_every_distribution_has_a_wheel(wheels: Path) -> None:
    built = {path.name.partition("-")[0] for path in wheels.glob("*.whl")}
    named = {tomllib.loads((project / "pyproject.toml").read_text())["project"]["name"] for project in PROJECTS}
    assert built == {name.replace("-", "_") for name in named}


def test_torch_wheel_is_for_this_platform_and_has_kernels_for_it(wheels: Path, tmp_path: Path) -> None:
    (wheel,) = wheels.glob("parallax_backend_torch-*.whl")
    assert wheel.stem.split("-")[2:4] == ["py3", "none"]
    assert wheel.stem.rpartition("-")[2].endswith(platform.machine())
    with zipfile.ZipFile(wheel) as archive:
        assert (
            "Root-Is-Purelib: false"
            in archive.read(next(n for n in archive.namelist() if n.endswith("/WHEEL"))).decode()
        )
        (kernels,) = (name for name in archive.namelist() if "/kernels/native." in name)
        library = ctypes.CDLL(archive.extract(kernels, tmp_path))
    assert library.plx_threads() >= 1


def test_installed_core_is_not_the_checkout(run: Run, bin_folder: Path) -> None:
    where = run("python", "-c", "import parallax_core; print(parallax_core.__file__)").strip()
    assert Path(where).is_relative_to(bin_folder.parent)
    assert "site-packages" in Path(where).parts


def test_installed_core_brings_no_package_of_its_plain_name(run: Run) -> None:
    found = run("python", "-c", "import importlib.util as u; print(u.find_spec('parallax'))")
    assert found.strip() == "None"


def test_installed_commands_answer(run: Run) -> None:
    assert run("parallax", "--version").split() == ["parallax", VERSION]
    assert "serve" in run("parallax", "--help")
    assert run("parallax", "doctor")


def test_installed_plugins_are_loaded(run: Run) -> None:
    plugins = {plugin["distribution"]: plugin for plugin in json.loads(run("parallax", "plugins", "--json"))}
    assert set(plugins) == {
        "parallax-adapters",
        "parallax-api-anthropic",
        "parallax-api-embeddings",
        "parallax-api-openai",
        "parallax-api-responses",
        "parallax-api-tokenize",
        "parallax-core",
        "parallax-backend-mlx",
        "parallax-batch",
        "parallax-chat",
        "parallax-cluster",
        "parallax-engines",
        "parallax-manage",
        "parallax-models",
        "parallax-netcheck",
        "parallax-observe",
        "parallax-openapi",
        "parallax-operate",
        "parallax-policies",
        "parallax-scaffold",
        "parallax-server-ollama",
        "parallax-simulate",
        "parallax-source-hub",
        "parallax-source-pypi",
        "parallax-transport-zmq",
        "parallax-web",
    }
    assert {plugin["state"] for plugin in plugins.values()} == {"loaded"}


@pytest.fixture
def server(bin_folder: Path, model_home: Path, tmp_path: Path) -> Iterator[str]:
    """Serve the default model from the environment and return the address of its API."""
    command = [str(bin_folder / "parallax"), "serve", "--backend", "mlx", "--port", "0"]
    with subprocess.Popen(
        command, cwd=tmp_path, env=environment(model_home), stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        ready = next((line for line in process.stdout if line.startswith("ready ")), "")
        try:
            assert ready, f"parallax serve ended with {process.wait(timeout=10)}"
            yield ready.split()[1]
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(timeout=20)


def test_installed_server_answers_a_question(server: str) -> None:
    question = {
        "model": "smollm2-135m",
        "messages": [{"role": "user", "content": "What is the capital of France?"}],
        "temperature": 0,
        "max_tokens": 20,
    }
    request = urllib.request.Request(
        f"{server}/chat/completions", json.dumps(question).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=120) as response:
        answer = json.load(response)
    assert "Paris" in answer["choices"][0]["message"]["content"]

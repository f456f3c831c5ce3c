"""Packages of plugin authors, those of the examples and those that are written new, beside the wheels of core."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from parallax_scaffold.scaffold import KINDS
from tests.e2e.conftest import ROOT, environment

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(600)]

EXAMPLES = {path.parent.name: path.parent for path in sorted(ROOT.glob("docs/examples/*/pyproject.toml"))}
NEW = {f"new-{kind}": f"parallax-{kind}-my-thing" for kind in KINDS}
TWICE = {"new-transport"}
"""What is, word for word, an example, whose tests take half a minute."""


@pytest.fixture(scope="module")
def packages(bin_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return the folders of all packages: copies of the examples, and what the installed core writes of each kind."""
    folder = tmp_path_factory.mktemp("packages")
    ignored = shutil.ignore_patterns("__pycache__", ".pytest_cache", "*.egg-info")
    found = {name: Path(shutil.copytree(path, folder / name, ignore=ignored)) for name, path in EXAMPLES.items()}
    for kind in KINDS:
        command = [str(bin_folder / "parallax"), "plugins", "new", kind, "My.Thing", "--folder", str(folder)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd=folder)
    return found | {name: folder / distribution for name, distribution in NEW.items()}


@pytest.fixture(scope="module")
def installed(author_bin: Path, packages: dict[str, Path]) -> Path:
    """Install all packages, and return the scripts of their environment."""
    # Nothing is fetched: what is installed are these packages, and what they need is there.
    offline = ["--no-index", "--no-deps", "--no-build-isolation"]
    command = [str(author_bin / "pip"), "install", "--quiet", *offline, *map(str, packages.values())]
    subprocess.run(command, check=True, env={**os.environ, "PATH": f"{author_bin}{os.pathsep}{os.environ['PATH']}"})
    return author_bin


def test_installed_packages_lack_nothing(installed: Path) -> None:
    ran = subprocess.run([str(installed / "pip"), "check"], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout


def test_every_package_is_loaded_and_offers_something(
    installed: Path, packages: dict[str, Path], tmp_path: Path
) -> None:
    command = [str(installed / "parallax"), "plugins", "--json"]
    ran = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path, env=environment(tmp_path))
    found = {each["distribution"]: each for each in json.loads(ran.stdout)}
    ours = {NEW.get(name) or f"parallax-{name}": found for name in packages}
    assert {found[name]["state"] for name in ours} == {"loaded"}
    offers = {name: dict(found[name]["offers"]) for name in ours}
    assert offers["parallax-backend-numpy"] == {"backends": ["numpy"]}
    assert offers["parallax-deployment-command"] == {"deployments": ["command"], "settings": ["command"]}
    assert offers["parallax-dialect-ask"] == {"dialects": ["ask"]}
    assert offers["parallax-policy-cached"] == {"scheduling": ["cached-first"]}
    assert offers["parallax-policy-rush"] == {"batching": ["rush"], "settings": ["rush"], "commands": ["rush"]}
    assert offers["parallax-service-clock"] == {"node services": ["clock"]}
    assert offers["parallax-source-my-thing"] == {"sources": ["my-thing"]}
    assert offers["parallax-parser-my-thing"] == {"parsers": ["my-thing"]}
    assert all(offers.values())


@pytest.mark.parametrize("name", [name for name in (*EXAMPLES, *NEW) if name not in TWICE])
def test_installed_package_passes_its_tests(
    name: str, installed: Path, packages: dict[str, Path], tmp_path: Path
) -> None:
    # Only the tests are there, so that what they import is what was installed.
    shutil.copytree(packages[name] / "tests", tmp_path / "tests")
    shutil.copy(packages[name] / "pyproject.toml", tmp_path)
    settings = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    settings.pop("PYTHONPATH", None)
    ran = subprocess.run(
        [str(installed / "pytest"), "-q"], cwd=tmp_path, env=settings, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "skipped" not in ran.stdout


@pytest.fixture
def server(installed: Path, model_home: Path, tmp_path: Path) -> Iterator[str]:
    """Serve the default model with the backend and the policies of the examples."""
    chosen = [
        "--backend",
        "numpy",
        "--set",
        "batching=rush:gap_s=0.001",
        "--set",
        "scheduling=cached-first:patience_s=5",
        "--port",
        "0",
    ]
    with subprocess.Popen(
        [str(installed / "parallax"), "serve", *chosen],
        cwd=tmp_path,
        env=environment(model_home),
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        ready = next((line for line in process.stdout if line.startswith("ready ")), "")
        try:
            assert ready, f"parallax serve ended with {process.wait(timeout=10)}"
            yield ready.split()[1]
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(timeout=20)


def test_example_backend_serves_a_real_model(server: str) -> None:
    question = {
        "model": "smollm2-135m",
        "messages": [{"role": "user", "content": "What is the capital of France?"}],
        "temperature": 0,
        "max_tokens": 10,
    }
    request = urllib.request.Request(
        f"{server}/chat/completions", json.dumps(question).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=120) as response:
        answer = json.load(response)
    assert "Paris" in answer["choices"][0]["message"]["content"]

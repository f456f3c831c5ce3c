"""Packages of strangers, one for each door: installed from wheels, used by the command line and HTTP, and removed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
import venv
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.e2e.conftest import ROOT, environment, find_site

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(900)]

OFFERS = {
    "parallax-deployment-command": {"deployments": ["command"], "settings": ["command"]},
    "parallax-dialect-ask": {"dialects": ["ask"]},
    "parallax-policy-cached": {"scheduling": ["cached-first"]},
    "parallax-policy-rush": {"batching": ["rush"], "settings": ["rush"], "commands": ["rush"]},
    "parallax-service-clock": {"node services": ["clock"]},
}
CONFIG = """
[serve]
deployment = "command"
stages = 2
batching = "rush:gap_s=0.001"
scheduling = "cached-first:patience_s=5"

[command]
again_s = 0.1
"""
Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def programs(bin_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the programs of an environment that uses the packages of the wheels' environment, and has none yet."""
    folder = tmp_path_factory.mktemp("strangers")
    venv.create(folder, with_pip=True)
    (find_site(folder) / "wheels.pth").write_text(f"{find_site(bin_folder.parent)}\n")
    script = folder / "bin/parallax"
    script.write_text(f"#!{folder}/bin/python\nimport sys\nfrom parallax_core.cli import main\nsys.exit(main())\n")
    script.chmod(0o755)
    return folder / "bin"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Build the wheels of the packages."""
    folder = tmp_path_factory.mktemp("dist")
    for name in OFFERS:
        project = ROOT / "docs/examples" / name.removeprefix("parallax-")
        command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(project)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return sorted(folder.glob("*.whl"))


@pytest.fixture
def run(programs: Path, model_home: Path, tmp_path: Path) -> Run:
    """Run a program of the environment where the configuration is that of the packages."""
    (tmp_path / "parallax.toml").write_text(CONFIG)

    def run(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [str(programs / program), *arguments]
        return subprocess.run(
            command, cwd=tmp_path, env=environment(model_home), capture_output=True, text=True, check=False, timeout=120
        )

    return run


@pytest.fixture
def installed(run: Run, built: list[Path]) -> Iterator[None]:
    """Install the packages, and remove them."""
    # Nothing is fetched: what these packages need is there.
    done = run("pip", "install", "--no-index", "--no-deps", *map(str, built))
    assert done.returncode == 0, done.stderr
    yield
    done = run("pip", "uninstall", "--yes", *OFFERS)
    assert done.returncode == 0, done.stderr


@pytest.fixture
def server(installed: None, programs: Path, model_home: Path, tmp_path: Path, run: Run) -> Iterator[str]:
    """Serve on two stages, whose nodes the launcher starts; the log is in ``log``."""
    del installed, run
    command = [str(programs / "parallax"), "serve", "--backend", "mlx", "--port", "0"]
    with (
        (tmp_path / "log").open("w") as log,
        subprocess.Popen(
            command, cwd=tmp_path, env=put_first(programs, model_home), stdout=subprocess.PIPE, stderr=log, text=True
        ) as process,
    ):
        assert process.stdout is not None
        ready = next((line for line in process.stdout if line.startswith("ready ")), "")
        try:
            assert ready, (tmp_path / "log").read_text()[-4000:]
            yield ready.split()[1]
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(timeout=30)


def put_first(programs: Path, model_home: Path) -> dict[str, str]:
    """Return the variables of a shell in which the environment is activated: nodes are started by name."""
    variables = environment(model_home)
    return {**variables, "PATH": f"{programs}{os.pathsep}{variables['PATH']}"}


def list_offers(run: Run) -> dict[str, dict[str, list[str]]]:
    """Return what each distribution offers, as `parallax plugins` says."""
    found = json.loads(run("parallax", "plugins", "--json").stdout)
    return {each["distribution"]: dict(each["offers"]) for each in found if each["state"] == "loaded"}


def ask(server: str, question: str) -> str:
    """Ask a question by the route of the dialect."""
    body = json.dumps({"question": question, "most_tokens": 16}).encode()
    request = urllib.request.Request(f"{server}/ask", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=120) as response:
        return str(json.load(response)["answer"])


def test_packages_of_strangers_are_used_through_every_door(server: str, run: Run, tmp_path: Path) -> None:
    assert OFFERS.items() <= list_offers(run).items()
    assert ask(server, "What is the capital of France?").strip()
    log = (tmp_path / "log").read_text()
    told = {line.partition("node=")[2] for line in log.splitlines() if "clock is right node=" in line}
    assert len(told) == 2, log[-4000:]
    assert run("parallax", "rush", "--arrival", "0").stdout.startswith("BEGINS AT  REQUESTS")
    assert "rush" in run("parallax", "--help").stdout


def test_packages_that_are_removed_leave_nothing(run: Run, programs: Path) -> None:
    assert not OFFERS.keys() & list_offers(run).keys()
    assert not list(find_site(programs.parent).glob("parallax_*"))
    refused = run("parallax", "serve", "--backend", "mlx", "--port", "0")
    assert refused.returncode != 0
    assert "error: " in refused.stderr
    assert "command" in refused.stderr
    assert run("parallax", "rush").returncode == 2

"""Fixtures that start real server processes on loopback with the real model."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import sysconfig
import time
import tomllib
import venv
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest
from filelock import FileLock

from parallax_transport_zmq.keyring import Keyring
from tests.e2e.tiny import SPLIT, TINY, write_tiny
from tests.support.tiny_adapters import make_matrices, merge, write_adapter
from tests.unit.cli.command_here import run_here

ROOT = Path(__file__).parents[2]
PROJECTS = [path.parent for path in (ROOT / "pyproject.toml", *sorted(ROOT.glob("plugins/*/pyproject.toml")))]
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
PARALLAX = str(Path(sys.executable).with_name("parallax"))
MODEL = "smollm2-135m"
START_TIMEOUT_S = 120
END_TIMEOUT_S = 3
ONE_READER = {f"PARALLAX_{command}__TOKENIZER_PROCESSES": "1" for command in ("SERVE", "RUN")}
"""A second process that reads bodies takes half a second of the processor in each server that starts."""


def environment(home: Path, **changes: str) -> dict[str, str]:
    """Return an environment with ``home`` as its only configuration of Parallax, but that servers start few readers."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PARALLAX_")}
    return {**kept, "PARALLAX_HOME": str(home), **ONE_READER, **changes}


def run_command(home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command that is short in this process, as on a machine with that home."""
    with pytest.MonkeyPatch.context() as patch:
        for name in [each for each in os.environ if each.startswith("PARALLAX_")]:
            patch.delenv(name)
        patch.setenv("PARALLAX_HOME", str(home))
        return run_here(*arguments)


@pytest.fixture
def with_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a key, so that everything over TCP is encrypted."""
    monkeypatch.setenv("PARALLAX_HOME", str(tmp_path / "home"))
    Keyring(tmp_path / "home" / "keys").make("default")


@dataclass
class Server:
    """A running ``parallax serve``."""

    process: subprocess.Popen[str]
    url: str
    log: Path
    lines: list[str] = field(default_factory=list)

    def cpu_seconds(self) -> float:
        """Return the CPU time the server has used so far, in seconds."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def end(self, number: int) -> float:
        """Send a signal, wait for the server to exit, and return the seconds it took."""
        begun = time.monotonic()
        self.process.send_signal(number)
        self.process.wait(END_TIMEOUT_S + 10)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return time.monotonic() - begun


def start_server(
    home: Path, log: Path, *args: str, model: str = MODEL, program: Sequence[str] = (PARALLAX,), **changes: str
) -> Server:
    """Start a server on a free port, and wait until it reports that it is ready."""
    command = [*program, "serve", model, "--backend", "mlx", "--port", "0", *args]
    with log.open("w") as sink:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=sink, text=True, env=environment(home, **changes)
        )
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line.startswith("ready "):
        process.kill()
        pytest.fail(f"the server did not become ready: {line!r}\n{log.read_text()}")
    return Server(process, line.split()[1], log, [line])


@pytest.fixture(scope="session")
def model_home() -> Path:
    """Return a home with the real model; it is kept in the checkout, so that the model is fetched only once."""
    home = ROOT / "build" / "test-home"
    subprocess.run([PARALLAX, "models", "pull", MODEL], check=True, env=environment(home), timeout=600)
    return home


def make_home(folder: Path, shared: Path) -> Path:
    """Make the home of another machine, with the models of a home, and what was found out about them and the processor.

    Otherwise each machine of each test would hash the weights and measure the processor again, for seconds.
    """
    folder.mkdir()
    for name in ("models", "cache"):
        (shared / name).mkdir(exist_ok=True)
        (folder / name).symlink_to(shared / name)
    return folder


@pytest.fixture(scope="session")
def model_folder(model_home: Path) -> Path:
    """Return the folder of the real model."""
    command = [PARALLAX, "models", "pull", MODEL]
    done = subprocess.run(command, check=True, env=environment(model_home), capture_output=True, text=True, timeout=60)
    return Path(done.stdout.strip())


@pytest.fixture(scope="session")
def split(model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a random model to be split over machines, for what real weights would only make slower."""
    return make_once("split", tmp_path_factory, partial(write_tiny, real=model_folder, sizes=SPLIT))


@pytest.fixture(scope="session")
def server(model_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Return a server shared by the tests that do not change its state."""
    server = start_server(model_home, tmp_path_factory.mktemp("server") / "log")
    yield server
    assert server.end(signal.SIGTERM) < END_TIMEOUT_S
    assert server.process.returncode == 0


def make_once(name: str, factory: pytest.TempPathFactory, make: Callable[[Path], object]) -> Path:
    """Return a folder that ``make`` has filled; the workers of a run of tests share it."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        folder = factory.mktemp(name)
        make(folder)
        return folder
    folder = factory.getbasetemp().parent / name
    with FileLock(folder.with_suffix(".lock")):
        if not (made := folder.with_suffix(".made")).exists():
            folder.mkdir(exist_ok=True)  # the worker that made it may have failed
            make(folder)
            made.touch()
    return folder


def build_wheels(folder: Path) -> None:
    """Build every distribution into ``folder``."""
    for project in PROJECTS:
        command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(project)]
        build = {**os.environ, "PARALLAX_BUILD_KERNELS": "require"}
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=build)


@pytest.fixture(scope="session")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build every distribution, and return the folder of the wheels."""
    return make_once("dist", tmp_path_factory, build_wheels)


@pytest.fixture(scope="session")
def bin_folder(wheels: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the wheels into an environment of their own, as a user would, and return its folder of scripts."""

    def install(folder: Path) -> None:
        venv.create(folder, with_pip=True)
        # Core's version is given so that a stranger of that name on an index cannot take its place.
        wanted = [f"parallax-core=={VERSION}", "parallax-backend-mlx", "parallax-server-ollama"]
        # Compiling all packages takes as long as installing them, and most are never imported.
        options = [
            "--quiet",
            "--no-compile",
            "--find-links",
            str(wheels),
            "--constraint",
            str(ROOT / "constraints.txt"),
        ]
        subprocess.run([folder / "bin/python", "-m", "pip", "install", *options, *wanted], check=True)

    return make_once("installed", tmp_path_factory, install) / "bin"


@pytest.fixture(scope="session")
def author_bin(bin_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the scripts of a plugin author's environment, which uses the packages of the wheels' environment."""
    folder = tmp_path_factory.mktemp("author")
    venv.create(folder)
    (find_site(folder) / "wheels.pth").write_text(f"{find_site(bin_folder.parent)}\n")
    scripts = {"parallax": "from parallax_core.cli import main", "pip": "from pip._internal.cli.main import main"}
    for name, line in scripts.items():
        script = folder / "bin" / name
        script.write_text(f"#!{folder}/bin/python\nimport sys\n{line}\nsys.exit(main())\n")
        script.chmod(0o755)
    wanted = ["--no-compile", "--constraint", str(ROOT / "constraints.txt"), "pytest", "hatchling"]
    subprocess.run([str(folder / "bin/pip"), "install", "--quiet", *wanted], check=True)
    return folder / "bin"


def find_site(folder: Path) -> Path:
    """Return the site-packages folder of a virtual environment."""
    return Path(sysconfig.get_path("purelib", vars={"base": str(folder), "platbase": str(folder)}))


ADAPTED = {f"layers.{layer}.{name}": shape for layer in range(TINY.layers) for name, shape in TINY.shapes.items()}
"""The modules that adapters change."""


@dataclass
class AdapterFiles:
    """A model, its adapters, and the model with each of these merged into it."""

    model: Path
    adapters: list[Path]
    merged: Path


@pytest.fixture(scope="session")
def adapter_files(model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> AdapterFiles:
    """Return a small model with adapters."""
    folder = tmp_path_factory.mktemp("adapters")
    model = write_tiny(folder / "model", model_folder)
    adapters = [
        write_adapter(folder / f"{seed}", make_matrices(ADAPTED, rank, seed, std=0.3), r=rank)
        for seed, rank in enumerate((4, 8, 3))
    ]
    return AdapterFiles(model, adapters, merge(model, adapters[1], folder / "merged"))


@pytest.fixture
def serve(model_home: Path, tmp_path: Path) -> Iterator[Callable[..., Server]]:
    """Return a function that starts a server of a model, which is ended after the test."""
    servers: list[Server] = []
    home = make_home(tmp_path / "home", model_home)

    def start(model: Path, *args: str, **changes: str) -> Server:
        log = tmp_path / f"{len(servers)}.log"
        servers.append(start_server(home, log, *args, model=str(model), **changes))
        return servers[-1]

    yield start
    for server in servers:
        server.end(signal.SIGTERM)

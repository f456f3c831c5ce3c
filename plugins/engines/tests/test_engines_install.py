from __future__ import annotations

import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import filelock
import pytest

from parallax_core.api import EngineSpec, Machine, ParallaxError, PipStep, Ref
from parallax_core.api.cli import UsageError
from parallax_engines import install as engine_install
from parallax_engines.environment import NOTE, find_environment
from parallax_engines.install import EngineInstall, choose_build, find_pip_error, remove_environment
from parallax_engines.local_source import find_family, list_sources

PIP_OPTIONS = ("--no-deps", "--no-index")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PARALLAX_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture(scope="module")
def copier(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return a Python that makes an environment by copying one, which is faster than with its own pip."""
    folder = tmp_path_factory.mktemp("copier")
    subprocess.run([sys.executable, "-m", "venv", str(folder / "environment")], check=True)
    script = folder / "python"
    script.write_text(f'#!/bin/sh\nexec cp -R "{folder / "environment"}" "$3"\n')
    script.chmod(0o755)
    return str(script)


def with_one_step(install: EngineInstall, python: str) -> EngineInstall:
    """Return an installation that makes its environment with a Python, and has only the first step."""
    return replace(install, python=python, spec=replace(install.spec, builds={"cpu": install.spec.builds["cpu"][:1]}))


def make_wheel(folder: Path, name: str, code: str = "", version: str = "1.5") -> str:
    """Write a wheel with one module, and return its path."""
    info = f"{name}-{version}.dist-info"
    path = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr(f"{name}.py", code)
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        wheel.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: hand\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{info}/RECORD", "")
    return str(path)


def make_install(folder: Path, monkeypatch: pytest.MonkeyPatch, code: str = "") -> EngineInstall:
    """Return the installation of a small engine; in place of Parallax, a second wheel is installed."""
    engine, extra = make_wheel(folder, "toyengine", code), make_wheel(folder, "toyextra")
    beside = make_wheel(folder, "beside")
    monkeypatch.setattr(engine_install, "list_sources", lambda _: [*PIP_OPTIONS, beside])
    steps = (PipStep(install=(engine, extra), options=PIP_OPTIONS), PipStep(uninstall=("toyextra",)))
    spec = EngineSpec(module="toyengine", distributions=("toyengine",), supported=">=1,<2", builds={"cpu": steps})
    return EngineInstall(backend="toy", spec=spec, distribution="parallax-backend-toy", build="cpu")


def test_environment_has_the_engine_and_parallax(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install = make_install(tmp_path, monkeypatch)
    (install.folder / "left-over").mkdir(parents=True)
    reports: list[tuple[str, int | None]] = []
    object.__setattr__(install, "progress", lambda task, done, total, unit: reports.append((task, total)))
    made = install.run()
    assert made == find_environment("toy")
    assert (made.note.build, made.read_version(("other", "toyengine"))) == ("cpu", "1.5")
    assert (made.read_version(("toyextra",)), made.read_version(("beside",))) == ("", "1.5")
    assert not (install.folder / "left-over").exists()
    assert reports[-1] == ("installing toy, step 3 of 3: packages", 0)
    assert remove_environment("toy") > 0
    assert find_environment("toy") is None


@pytest.mark.nightly
def test_environment_that_cannot_be_imported_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, copier: str
) -> None:
    install = with_one_step(make_install(tmp_path, monkeypatch, "raise OSError('no such instruction')"), copier)
    with pytest.raises(ParallaxError, match="cannot be imported: OSError: no such instruction") as failed:
        install.run()
    assert failed.value.hint == "try another build: --cpu"
    assert not install.folder.exists()


def test_engine_is_imported_as_its_backend_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, copier: str) -> None:
    install = make_install(tmp_path, monkeypatch, "def check():\n    raise OSError('not that way')")
    install = with_one_step(install, copier)
    object.__setattr__(install, "spec", replace(install.spec, importing=Ref("toyengine:check")))
    with pytest.raises(ParallaxError, match="toyengine is installed, but cannot be imported: OSError: not that way"):
        install.run()


def test_failure_of_pip_is_told_and_nothing_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, copier: str
) -> None:
    install = with_one_step(make_install(tmp_path, monkeypatch), copier)
    monkeypatch.setattr(engine_install, "list_sources", lambda _: ["--no-index", "no-such-distribution-at-all"])
    with pytest.raises(ParallaxError, match="No matching distribution found for no-such-distribution-at-all"):
        install.run()
    assert not install.folder.exists()


def test_environment_that_was_not_completed_does_not_count(home: Path) -> None:
    folder = home / "engines" / "toy"
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "python").touch()
    assert find_environment("toy") is None
    (folder / NOTE).write_text("{")
    assert find_environment("toy") is None
    remove_environment("toy")
    with pytest.raises(ParallaxError, match="there is no environment for the engine of 'toy'"):
        remove_environment("toy")


def test_second_installation_at_the_same_time_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install = make_install(tmp_path, monkeypatch)
    install.folder.parent.mkdir(parents=True)
    with filelock.FileLock(install.folder.with_suffix(".lock")), pytest.raises(ParallaxError, match="another process"):
        install.run()


@pytest.mark.parametrize(("python", "reason"), [("/nowhere/python", "cannot be started"), ("false", "cannot make")])
def test_interpreter_that_will_not_do_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, python: str, reason: str
) -> None:
    install = make_install(tmp_path, monkeypatch)
    object.__setattr__(install, "python", python)
    with pytest.raises(ParallaxError, match=reason):
        install.run()


def test_build_that_the_engine_lacks_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install = make_install(tmp_path, monkeypatch)
    object.__setattr__(install, "build", "cuda")
    with pytest.raises(UsageError, match="has no build for cuda"):
        install.run()


def describe(install: EngineInstall, step: PipStep, release: str = "") -> list[str]:
    """Return the arguments of pip for an engine that is installed in one step."""
    [described, _] = replace(
        install, release=release, spec=replace(install.spec, builds={"cpu": (step,)})
    ).list_commands()
    return described


def test_releases_to_choose_from_are_the_supported_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install = make_install(tmp_path, monkeypatch)
    step = PipStep(install=("engine{release}", "other"), options=("--no-deps",))
    assert describe(install, step) == ["install", "--no-deps", "engine>=1,<2", "other"]
    assert describe(install, step, release="1.2")[2] == "engine>=1,<2,==1.2"


def test_builds_of_a_third_party_are_of_the_releases_that_were_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install = make_install(tmp_path, monkeypatch)
    step = PipStep(install=("engine{release}",), releases=("1.1", "1.2"))
    assert describe(install, step) == ["install", "engine==1.2"]
    assert describe(install, step, release="1.1") == ["install", "engine==1.1"]
    wanted = replace(install, release="1.3", spec=replace(install.spec, builds={"cpu": (step,)}))
    with pytest.raises(UsageError, match=r"release 1\.3 of the engine of 'toy' was not tried on cpu") as caught:
        wanted.run()
    assert caught.value.hint == "choose one of: 1.1, 1.2"
    assert not install.folder.exists()


def test_versions_are_those_that_the_engine_requires(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install = make_install(tmp_path, monkeypatch)
    info = install.folder / "lib" / "python3.11" / "site-packages" / "engine-1.2.dist-info"
    info.mkdir(parents=True)
    required = ("Some_Library<3,>=2.1", "free", "unwanted==1", 'free==9; extra == "all"', "torch==1.0")
    lines = ["Metadata-Version: 2.1", "Name: engine", "Version: 1.2", *(f"Requires-Dist: {each}" for each in required)]
    (info / "METADATA").write_text("\n".join(lines))
    step = PipStep(install=("torch==2.0", "some-library", "free", "other"), as_required_by="engine")
    assert describe(install, step) == ["install", "torch==2.0", "Some_Library<3,>=2.1", "free", "other"]
    missing = PipStep(install=("free",), as_required_by="nowhere")
    assert describe(install, missing) == ["install", "free"]


def test_build_is_that_of_the_machine(tmp_path: Path) -> None:
    both = EngineSpec(module="m", distributions=(), supported="", builds={"cpu": (), "cuda": ()})
    only = EngineSpec(module="m", distributions=(), supported="", builds={"cpu": ()})
    assert choose_build(both, Machine(nvidia_driver=tmp_path)) == "cuda"
    assert choose_build(both, Machine(nvidia_driver=tmp_path / "none")) == "cpu"
    assert choose_build(only, Machine(nvidia_driver=tmp_path)) == "cpu"


def test_error_of_pip_is_its_last() -> None:
    assert find_pip_error(["Collecting x", "ERROR: one", "ERROR: two", "hint"]) == "two"
    assert find_pip_error(["killed", ""]) == "killed"
    assert find_pip_error([]) == "it ended without a message"


def test_same_parallax_is_installed_as_here() -> None:
    assert find_family("parallax-backend-vllm")[:2] == ["parallax-core", "parallax-backend-vllm"]
    assert set(find_family("parallax-backend-vllm")) >= {"parallax-models", "parallax-transport-zmq"}
    arguments = list_sources("parallax-backend-vllm")
    places = [
        Path(path) for option, path in zip(arguments[::2], arguments[1::2], strict=True) if option == "--editable"
    ]
    assert all((place / "pyproject.toml").is_file() for place in places)
    assert len(places) == len(find_family("parallax-backend-vllm"))


def test_commands_on_engines_work(tmp_path: Path) -> None:
    def run(*words: str) -> subprocess.CompletedProcess[str]:
        command = [str(Path(sys.executable).with_name("parallax")), "engines", *words]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)

    listed = run("list")
    assert listed.stdout.splitlines()[0].split() == ["ENGINE", "SUPPORTED", "INSTALLED", "FOLDER"]
    assert "vllm" in listed.stdout
    unknown = run("install", "mlx")
    assert unknown.returncode == 1
    assert "error: no installed backend has an engine 'mlx'; there is: " in unknown.stderr
    both = run("install", "vllm", "--cpu", "--cuda")
    assert (both.returncode, both.stderr.splitlines()[0]) == (2, "error: --cpu and --cuda are two builds of the engine")
    assert "there is no environment for the engine of 'vllm'" in run("remove", "vllm").stderr

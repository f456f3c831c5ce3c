"""The environments of engines: which Python runs the workers of a backend, and what `parallax doctor` says of it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from parallax_core.api import BackendPython, BackendSpec, EngineSpec, Ref
from parallax_core.base.errors import UsageError
from parallax_core.config.config import Config
from parallax_core.config.serve import ServeSettings
from parallax_core.deploy.interpreter import find_own_pythons
from parallax_core.deploy.stage_options import read_stage_options
from parallax_core.plugins.host import PluginHost
from parallax_core.testing.backend_python import BackendPythonConformance
from parallax_engines.environment import NOTE, EngineNote
from parallax_engines.plugin import parallax_diagnose, parallax_find_python
from tests.unit.conftest import site
from tests.unit.plugins.site import Site

__all__ = ["site"]


ENGINE = """
from dataclasses import dataclass
from parallax_core.api import Availability, BackendSpec, EngineSpec, Ref, SettingsSpec, hookimpl

ENGINE = EngineSpec(module="none", distributions=("abacus-engine",), supported=">=1,<2", builds={})

@dataclass(frozen=True)
class Options:
    beads: int = 10
    names: tuple[str, ...] = ()
    is_round: bool = False

def probe():
    return Availability(ok={ok}, reason="it is not installed: parallax engines install abacus")

@hookimpl
def parallax_register_backends():
    return [BackendSpec(name="{name}", summary="s", probe=Ref("{module}:probe"), factory=Ref("{module}:probe"),
                        options=Ref("{module}:Options"), engine=Ref("{module}:ENGINE"), opens=("engine",))]

@hookimpl
def parallax_register_settings():
    return [SettingsSpec(name="{name}", summary="s", schema=Ref("{module}:Options"))]
"""
ABACUS = EngineSpec(module="no_engine", distributions=("abacus-engine",), supported=">=1,<2", builds={})


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PARALLAX_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def make_environment(home: Path) -> Path:
    """Make an environment whose interpreter is this one, and return that."""
    python = home / "engines" / "abacus" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    note = EngineNote(backend="abacus", build="cpu", core="0.1.0")
    (home / "engines" / "abacus" / NOTE).write_bytes(msgspec.json.encode(note))
    return python


def put_release(environment: Path, version: str) -> None:
    """Have an environment hold a release of the engine."""
    info = environment / "lib/python3.11/site-packages" / f"abacus_engine-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: abacus-engine\nVersion: {version}\n")


def install(site: Site, *, ok: bool) -> None:
    site.install("abacus", ENGINE.replace("{ok}", str(ok)))


def find(**given: object) -> dict[str, str]:
    settings = ServeSettings(backend="abacus", **given)  # type: ignore[arg-type]
    return find_own_pythons(settings, PluginHost.discover(), ["abacus"])


def test_environment_of_an_engine_is_found(site: Site, home: Path) -> None:
    install(site, ok=False)
    assert find() == {}
    python = make_environment(home)
    assert find() == {"abacus": str(python)}
    assert find(python=("abacus=/other/python",)) == {}
    assert find(listen="tcp://127.0.0.1:0") == {}


@pytest.mark.parametrize(("version", "is_right"), [("1.5+cpu", True), ("1.9rc1", True), ("2.0", False), ("0.9", False)])
def test_environment_with_another_release_of_the_engine_is_refused(
    site: Site, home: Path, version: str, is_right: bool
) -> None:
    install(site, ok=False)
    python = make_environment(home)
    put_release(home / "engines/abacus", version)
    if is_right:
        assert find() == {"abacus": str(python)}
        return
    with pytest.raises(UsageError, match=rf"has abacus {version}, and the backend 'abacus' supports >=1,<2") as refused:
        find()
    assert "parallax engines install abacus" in refused.value.hint


def test_engine_beside_parallax_comes_before_its_environment(site: Site, home: Path) -> None:
    install(site, ok=True)
    make_environment(home)
    assert find() == {}


def test_worker_in_an_environment_gets_all_options_and_no_file(site: Site, home: Path, tmp_path: Path) -> None:
    install(site, ok=False)
    python = make_environment(home)
    file = tmp_path / "parallax.toml"
    file.write_text("[abacus]\nbeads = 3\nnames = ['a', 'b']\nis_round = true\n")
    plugins = PluginHost.prepare(Config.load(file))
    settings = ServeSettings(backend="abacus", backend_option=("beads=4",))
    stages = read_stage_options(settings, plugins)
    assert (stages.pythons, stages.place) == ({"abacus": str(python)}, "with abacus")
    from parallax_core.deploy.executors import make_registry

    registry = make_registry(settings, stages.transport, tmp_path, plugins)
    launcher = stages._make_launcher(registry, tmp_path, ("abacus",))
    command = launcher.make_command("worker/0/0")
    given = [command[place + 1] for place, word in enumerate(command) if word == "--backend-option"]
    assert given == ["beads=4", "names=a,b", "is_round=true"]
    assert Path(command[command.index("--config") + 1]).read_text() == ""
    assert command[0] == str(python)


def test_engine_that_is_not_installed_is_refused_with_the_command(site: Site, home: Path) -> None:
    install(site, ok=False)
    with pytest.raises(Exception, match="it is not installed: parallax engines install abacus"):
        read_stage_options(ServeSettings(backend="abacus"), PluginHost.prepare(Config()))


class TestEnvironments(BackendPythonConformance):
    """The environments that ``parallax engines install`` makes."""

    @pytest.fixture(autouse=True)
    def at_home(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PARALLAX_HOME", str(tmp_path / "home"))

    def find(self, backend: BackendSpec) -> BackendPython | None:
        return parallax_find_python(backend)

    def make_environment(self, folder: Path) -> BackendSpec:
        make_environment(folder / "home")
        nothing = Ref[Any]("no:thing")
        return BackendSpec(name="abacus", summary="s", probe=nothing, factory=nothing, engine=Ref(f"{__name__}:ABACUS"))

    def spoil_environment(self, folder: Path) -> None:
        put_release(folder / "home/engines/abacus", "2.0")


def test_doctor_says_which_release_an_environment_has(home: Path) -> None:
    nothing = Ref[Any]("no:thing")
    spec = BackendSpec(name="abacus", summary="s", probe=nothing, factory=nothing, engine=Ref(f"{__name__}:ABACUS"))
    plain = BackendSpec(name="plain", summary="s", probe=nothing, factory=nothing)
    [missing] = parallax_diagnose([plain, spec])
    assert (missing.status, missing.remedy) == ("ok", "parallax engines install abacus")
    assert missing.message == ">=1,<2 is supported, and there is no environment with it"
    make_environment(home)
    [empty] = parallax_diagnose([spec])
    assert (empty.status, "none (cpu) in " in empty.message) == ("warning", True)
    put_release(home / "engines/abacus", "1.5")
    [right] = parallax_diagnose([spec])
    assert (right.status, right.remedy) == ("ok", "")
    assert right.message == f"1.5 (cpu) in {home / 'engines/abacus'}; >=1,<2 is supported"

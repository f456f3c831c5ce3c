from __future__ import annotations

import sys
from pathlib import Path

import msgspec
import pytest

from parallax_core.base.errors import UsageError
from parallax_core.config.config import Config
from parallax_core.config.serve import ServeSettings
from parallax_core.deploy.engine_environment import NOTE, EngineNote
from parallax_core.deploy.interpreter import check_python, find_engine_pythons
from parallax_core.deploy.stage_options import read_stage_options
from parallax_core.plugins.host import PluginHost
from tests.unit.plugins.site import Site

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
FOUND = {"abacus": "engines/abacus/bin/python"}


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


def install(site: Site, *, ok: bool) -> None:
    site.install("abacus", ENGINE.replace("{ok}", str(ok)))


def find(**given: object) -> dict[str, str]:
    settings = ServeSettings(backend="abacus", **given)  # type: ignore[arg-type]
    return find_engine_pythons(settings, PluginHost.discover(), ["abacus"])


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
    info = python.parents[1] / "lib/python3.11/site-packages" / f"abacus_engine-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: abacus-engine\nVersion: {version}\n")
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


def test_interpreter_with_other_messages_is_refused_with_both_versions(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho 9.9 99\n")
    python.chmod(0o755)
    with pytest.raises(UsageError, match=r"it has parallax-core 9\.9 with wire version 99, and this one") as no:
        check_python(str(python), "abacus")
    assert "-m pip install parallax-core==" in no.value.hint

"""``parallax config`` and ``parallax doctor``, as processes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.unit.plugins.site import Site

MINE = """
from dataclasses import dataclass
from parallax_core.api import Ref, SettingsSpec, hookimpl

@dataclass(frozen=True)
class Mine:
    token: str = ""
    speed: int = 1

@hookimpl
def parallax_register_settings():
    return [SettingsSpec(name="mine", summary="s", schema=Ref("{module}:Mine"))]
"""


def show(site: Site, *arguments: str, **changes: str) -> dict[str, Any]:
    done = site.run("config", "--json", *arguments, **changes)
    assert done.returncode == 0, done.stderr
    shown: dict[str, Any] = json.loads(done.stdout)
    shown["settings"] = {f"{each['section']}.{each['key']}": each for each in shown["settings"]}
    return shown


def test_config_shows_each_value_and_where_it_comes_from(site: Site) -> None:
    site.install("mine", MINE)
    path = site.folder / "parallax.toml"
    path.write_text("[serve]\nport = 1234\n[mine]\ntoken = 'geheim'\n")
    shown = show(site, PARALLAX_MINE__SPEED="5")
    assert shown["file"] == str(path)
    facts = {name: (each["value"], each["origin"], each["place"]) for name, each in shown["settings"].items()}
    assert facts["serve.port"] == (1234, "file", str(path))
    assert facts["serve.host"] == ("127.0.0.1", "default", None)
    assert facts["mine.speed"] == (5, "environment", "PARALLAX_MINE__SPEED")
    assert facts["mine.token"] == ("***", "file", str(path))
    table = site.run("config", PARALLAX_MINE__SPEED="5").stdout
    assert "geheim" not in table
    assert ["[serve]", "port", "1234", str(path)] in [line.split() for line in table.splitlines()]
    assert ["[mine]", "speed", "5", "PARALLAX_MINE__SPEED"] in [line.split() for line in table.splitlines()]


def test_config_explains_the_settings_of_one_section(site: Site) -> None:
    site.install("mine", MINE)
    lines = site.run("config", "mine", PARALLAX_MINE__SPEED="5").stdout.splitlines()
    assert lines[2:4] == ['[mine] token = "" (from: default)', "  text"]
    assert lines[5:7] == ["[mine] speed = 5 (from: PARALLAX_MINE__SPEED)", "  an integer"]
    assert set(show(site, "mine")["settings"]) == {"mine.token", "mine.speed"}
    done = site.run("config", "mime")
    assert done.returncode == 1
    assert "error: no section named 'mime'" in done.stderr
    assert "hint: did you mean 'mine'?" in done.stderr


def test_config_without_a_file_says_so(site: Site) -> None:
    assert show(site)["file"] is None
    assert site.run("config").stdout.startswith("file: none\n")


@pytest.mark.parametrize("command", ["config", "serve", "models"])
def test_mistake_in_the_configuration_ends_with_2_and_a_hint(site: Site, command: str) -> None:
    (site.folder / "parallax.toml").write_text("[serve]\nprot = 1\n")
    done = site.run(command, *(["list"] if command == "models" else []))
    assert done.returncode == 2
    assert f"error: [serve] prot in {site.folder / 'parallax.toml'}: there is no such setting" in done.stderr
    assert "hint: did you mean 'port'?" in done.stderr


def test_doctor_reports_a_mistake_and_goes_on(site: Site) -> None:
    (site.folder / "parallax.toml").write_text("[serve]\nport = 'high'\n")
    done = site.run("doctor")
    assert done.returncode == 1
    assert "ERROR   configuration: [serve] port in" in done.stdout
    assert "ok      plugin core" in done.stdout


ADVISED = """
from parallax_core.api import Availability, BackendSpec, Ref, hookimpl

def probe():
    return Availability(ok=True, device="abacus", advice="buy a computer")

@hookimpl
def parallax_register_backends():
    return [BackendSpec(name="beads", summary="s", probe=Ref("{module}:probe"), factory=Ref("no:thing"))]
"""


def test_doctor_says_what_would_make_a_backend_faster(site: Site) -> None:
    site.install("advised", ADVISED)
    assert "ok      backend beads: can run on abacus\n        buy a computer\n" in site.run("doctor").stdout


def test_doctor_names_all_that_is_not_loaded_when_strict(site: Site) -> None:
    site.install("bad", "import not_there")
    site.install("old", MINE, api="0")
    done = site.run("doctor", "--strict-plugins")
    assert done.returncode == 1
    assert "error: 2 of " in done.stderr
    assert "'bad' (bad 1.0) is broken" in done.stderr
    assert "'old' (old 1.0) is incompatible" in done.stderr


def test_serve_refuses_to_start_when_strict(site: Site) -> None:
    site.install("bad", "import not_there")
    done = site.run("serve", "no-such-model", "--set", "strict_plugins=true")
    assert done.returncode == 1
    assert "plugins are not loaded: 'bad' (bad 1.0) is broken" in done.stderr
    assert "hint: module 'not_there' is missing: " in done.stderr
    assert "pip install not_there" in done.stderr
    off = site.run("serve", "no-such-model", "--set", "strict_plugins=false", PARALLAX_SERVE__STRICT_PLUGINS="true")
    assert "error: no installed backend can run on this machine" in off.stderr


def test_hanging_probe_does_not_hang_doctor(site: Site) -> None:
    code = """
import time
from parallax_core.api import BackendSpec, Ref, hookimpl

def probe():
    time.sleep(600)

@hookimpl
def parallax_register_backends():
    return [BackendSpec(name="stuck", summary="s", probe=Ref("{module}:probe"), factory=Ref("{module}:probe"))]
"""
    site.install("stuck", code)
    for name in ("one", "two"):
        site.install(name, code.replace("stuck", "same").replace("time.sleep", "int"))
    done = site.run("doctor")
    assert "WARNING backend stuck: the probe of stuck 1.0 did not end within 5 s" in done.stdout
    assert "WARNING backend same of two 1.0: the probe of two 1.0 failed" in done.stdout
    assert "WARNING plugin one: backend 'same' is offered by both one 1.0 and two 1.0" in done.stdout

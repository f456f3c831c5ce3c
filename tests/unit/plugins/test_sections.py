"""Settings of plugins: declared, checked, given."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

import pytest

from parallax_core.base.errors import BrokenPlugin, PluginConflict, UnknownName, UsageError
from parallax_core.config.config import Config
from parallax_core.plugins.host import PluginHost
from tests.unit.plugins.site import Site

MINE = """
from dataclasses import dataclass
from pathlib import Path
from parallax_core.api import Ref, SettingsSpec, hookimpl

@dataclass(frozen=True, kw_only=True)
class Mine:
    speed: int = 1
    paths: tuple[Path, ...] = ()

given = []

@hookimpl
def parallax_register_settings():
    return [SettingsSpec(name="mine", summary="s", schema=Ref("{module}:Mine"))]

@hookimpl
def parallax_configure(config):
    given.append(config.section(Mine))
"""


def write(site: Site, text: str) -> Config:
    (site.folder / "parallax.toml").write_text(text)
    return Config.load()


def test_plugin_gets_its_section_from_file_and_environment(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.install("mine", MINE)
    config = write(site, '[mine]\nspeed = 2\npaths = ["here", "~/there"]\n')
    import mine_plugin  # type: ignore[import-not-found]

    PluginHost.prepare(config)
    monkeypatch.setenv("PARALLAX_MINE__SPEED", "3")
    PluginHost.prepare()
    paths = (site.folder / "here", Path("~/there").expanduser())
    assert mine_plugin.given == [mine_plugin.Mine(speed=2, paths=paths), mine_plugin.Mine(speed=3, paths=paths)]


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ('[mine]\nspeed = "fast"', "[mine] speed in {file} is 'fast': expected an integer", "for the default, 1"),
        ("[mine]\nsped = 2", "[mine] sped in {file}: there is no such setting", "did you mean 'speed'?"),
        ("[mime]\nspeed = 2", "[mime] in {file}: there is no section [mime]", "did you mean [mine]?"),
        ("[serve]\nport = 99999", "[serve] port in {file} is 99999: expected an integer from 0 to 65535", ""),
        (
            "[elsewhere]\na = 1",
            "[elsewhere] in {file}: there is no section [elsewhere]",
            "; a plugin that has it may not be installed",
        ),
        ("[elsewhere]", "[elsewhere]: there is no section [elsewhere]", ""),
    ],
)
def test_mistake_in_the_file_is_told_with_its_place(site: Site, text: str, message: str, hint: str) -> None:
    site.install("mine", MINE)
    with pytest.raises(UsageError) as caught:
        PluginHost.prepare(write(site, text))
    assert caught.value.message == message.format(file=site.folder / "parallax.toml")
    assert hint in caught.value.hint


@pytest.mark.parametrize(("variable", "is_error"), [("PARALLAX_MIME__SPEED", True), ("PARALLAX_ELSEWHERE__A", False)])
def test_variable_of_an_unknown_section_is_an_error_only_if_it_looks_mistyped(
    site: Site, variable: str, is_error: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    site.install("mine", MINE)
    monkeypatch.setenv(variable, "1")
    if is_error:
        with pytest.raises(UsageError, match=variable):
            PluginHost.prepare()
    else:
        PluginHost.prepare()
        assert f"{variable} is not used" in caplog.text


@pytest.mark.parametrize("section", ["mine", "parallax_backend_mine"])
def test_section_of_a_plugin_that_is_not_loaded_is_left_alone(
    site: Site, section: str, caplog: pytest.LogCaptureFixture
) -> None:
    site.add("parallax-backend-mine", {"mine_plugin": "raise OSError"})
    site.state("parallax-backend-mine", {"parallax": "mine = mine_plugin", "parallax.api": "1 = mine_plugin"})
    with caplog.at_level(logging.WARNING):
        PluginHost.prepare(write(site, f"[{section}]\nanything = 1"))
    assert "is not used: plugin 'mine' is broken" in caplog.text


def test_section_that_two_plugins_declare_is_a_conflict_once_it_is_used(site: Site) -> None:
    for name in ("one", "two"):
        site.install(name, MINE.replace("given.append(config.section(Mine))", "pass"))
    PluginHost.prepare(write(site, ""))
    with pytest.raises(PluginConflict, match=r"section 'mine' is offered by both one 1\.0 and two 1\.0"):
        PluginHost.prepare(write(site, "[mine]\nspeed = 1"))
    PluginHost.prepare(write(site, "[mine]\nspeed = 1\n[plugins]\nprefer.settings.mine = 'two'"))


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (MINE.replace("@dataclass(frozen=True, kw_only=True)", ""), "is not a dataclass"),
        (MINE.replace("speed: int = 1", "speed: int"), "'speed' of Mine has no default"),
        (MINE.replace("speed: int = 1", "speed: object = 1").replace("object", "range"), "has the type range, which"),
        (MINE.replace("{module}:Mine", "{module}:Yours"), "'mine' of mine 1.0 cannot be loaded"),
    ],
)
def test_section_that_cannot_be_used_is_the_plugins_fault(site: Site, code: str, message: str) -> None:
    site.install("mine", code.replace("given.append(config.section(Mine))", "pass"))
    with pytest.raises(BrokenPlugin, match=message):
        PluginHost.prepare(write(site, "[mine]\nspeed = 1"))


@dataclass(frozen=True)
class Stranger:
    a: int = 1


def test_section_that_nobody_declared_is_not_given(site: Site) -> None:
    site.install("mine", MINE.replace("config.section(Mine)", "config.section(Path)"))
    host = PluginHost.prepare(write(site, ""))
    found = next(record for record in host.records if record.name == "mine")
    assert (found.state, found.reason) == ("broken", "no plugin declares a section with pathlib:Path")
    with pytest.raises(UnknownName):
        host._config.section(Stranger)  # type: ignore[union-attr]

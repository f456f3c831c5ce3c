from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import typer

from parallax_core.base.errors import UsageError
from parallax_core.cli import plugin_commands
from parallax_core.plugins.discovery import PluginRecord
from parallax_core.plugins.host import PluginHost
from parallax_manage.plugins import app, plugins
from tests.unit.plugins.site import Site

CLI = (Path(__file__).parents[3] / "docs/reference/cli.md").read_text(encoding="utf-8")
NOISE = "import os\nprint('noise')\nos.write(1, b'noise')\n"
OFFER = """
from parallax_core.api import Ref, SourceSpec, hookimpl

@hookimpl
def parallax_register_sources():
    print("more noise")
    return [SourceSpec(name="{name}", summary="s", factory=Ref("{module}:Source"))]
"""
OBSERVE = """
@hookimpl
def parallax_observe(event):
    pass
"""
TYPES = {"string": str, "object": dict, "list of strings": list}


def test_plugins_lists_every_kind_of_thing_core_offers(capsys: pytest.CaptureFixture[str]) -> None:
    plugins(as_json=True)
    [core] = [each for each in json.loads(capsys.readouterr().out) if each["name"] == "core"]
    assert core["offers"]["sources"] == ["file"]
    assert core["offers"]["transports"] == ["inprocess"]
    assert core["offers"]["batching"] == ["work-conserving", "immediate"]
    assert core["offers"]["scheduling"] == ["priority"]
    assert core["offers"]["preemption"] == ["lowest-priority"]
    assert core["offers"]["routing"] == ["least-pending-tokens"]


def test_sub_command_that_is_not_installed_names_its_distribution(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugin_commands, "find_commands", dict)
    with pytest.raises(UsageError, match="`parallax plugins new` is a command of parallax-scaffold") as caught:
        typer.main.get_command(app).main(["new", "backend", "mine"], standalone_mode=False)
    assert caught.value.hint == "pip install parallax-scaffold"


def test_plugins_writes_a_line_for_each_kind(capsys: pytest.CaptureFixture[str]) -> None:
    plugins(as_json=False)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["NAME", "DISTRIBUTION", "VERSION", "STATE", "OFFERS"]
    assert any(line.startswith("core ") and line.endswith("sources: file") for line in lines)
    assert "transports: inprocess" in [line.strip() for line in lines]


def test_plugin_that_offers_nothing_is_listed_with_its_reason(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    record = PluginRecord(
        name="bad", distribution="bad", version="1", module="bad", state="broken", reason="boom", remedy="mend it"
    )
    monkeypatch.setattr(PluginHost, "discover", lambda _: PluginHost([(record, None)]))
    plugins(as_json=False)
    written = capsys.readouterr().out
    assert [line.split() for line in written.splitlines()][1] == ["bad", "bad", "1", "broken", "-"]
    assert "bad is broken: boom\n  mend it" in written


def read_schema() -> dict[str, type[Any]]:
    """Return the keys that the page promises, with their types."""
    section = CLI.partition("\n## `parallax plugins`\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `(\w+)` \| ([a-z ]+) \|", section, re.MULTILINE)
    return {name: TYPES[kind] for name, kind in rows}


def test_json_has_the_keys_and_types_of_the_page_whatever_the_state(site: Site) -> None:
    site.install("good", NOISE + OFFER + OBSERVE)
    site.install("old", OFFER, api="0")
    site.install("off", OFFER)
    site.install("bad", NOISE + "raise OSError('boom')")
    site.install_command("lone", "hello", "raise OSError('imported')")
    site.install_command("greedy", "serve", "raise OSError('imported')")
    done = site.run("plugins", "--json", PARALLAX_PLUGINS_DISABLED="off")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    schema = read_schema()
    assert schema
    for plugin in found:
        assert {name: type(value) for name, value in plugin.items()} == schema
    states = {plugin["name"]: plugin["state"] for plugin in found}
    assert {"good": "loaded", "old": "incompatible", "off": "disabled", "bad": "broken"}.items() <= states.items()
    assert all(bool(plugin["reason"]) == bool(plugin["remedy"]) == (plugin["state"] != "loaded") for plugin in found)
    offers = {plugin["name"]: plugin["offers"] for plugin in found}
    assert (offers["good"], offers["bad"]) == ({"sources": ["good"], "hooks": ["parallax_observe"]}, {})
    assert offers["hello"] == {"commands": ["hello"]}
    assert [plugin["refused"] for plugin in found if plugin["name"] == "serve"] == [
        ["command 'serve' is refused: it is one of Parallax's own"]
    ]


def test_page_names_every_kind_and_state() -> None:
    section = CLI.partition("\n## `parallax plugins`\n")[2].partition("\n## ")[0]
    kinds = [*PluginHost([]).list_registries(), "commands", "hooks"]
    states = ["loaded", "disabled", "incompatible", "broken"]
    assert [word for word in kinds + states if f"`{word}`" not in section] == []


def test_name_that_two_distributions_offer_is_refused_and_told_once(site: Site) -> None:
    for name in ("one", "two"):
        site.install(name, OFFER.replace('name="{name}"', 'name="same"').replace("{name}", "same"))
    said = "model source 'same' is offered by both one 1.0 and two 1.0: choose one, with prefer.source.same = \"one\""
    found = {each["name"]: each for each in json.loads(site.run("plugins", "--json").stdout)}
    for name in ("one", "two"):
        assert found[name]["offers"] == {}
        assert [sentence.startswith(said) for sentence in found[name]["refused"]] == [True]
    assert site.run("plugins").stdout.count(said) == 2


def test_preference_of_the_configuration_is_shown(site: Site) -> None:
    site.install("one", OFFER.replace('"{name}"', '"same"'))
    site.install("two", OFFER.replace('"{name}"', '"same"'))
    (site.folder / "own.toml").write_text("[plugins]\nprefer.source.same = 'one'\n")
    found = {each["name"]: each for each in json.loads(site.run("plugins", "--json", "--config", "own.toml").stdout)}
    assert found["one"]["offers"] == {"sources": ["same"]}
    assert found["two"]["refused"] == ["model source 'same' is not used: another distribution is preferred"]

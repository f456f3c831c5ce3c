"""Old spellings of commands work, and a command that is not installed names its distribution."""

from __future__ import annotations

import subprocess

import pytest

from parallax_core.base.errors import UsageError
from parallax_core.cli import COMMANDS, load_command
from parallax_core.cli.old_commands import OLD, OWNERS, find_old, refuse_missing
from parallax_core.cli.plugin_commands import list_headings
from parallax_core.plugins.discovery import DISABLED_VARIABLE
from tests.unit.plugins.site import PARALLAX, Site


@pytest.mark.parametrize("name", OLD)
def test_old_spelling_is_another_command(name: str) -> None:
    command = find_old(name, load_command)
    context = command.make_context(name, [], resilient_parsing=True)
    assert context.get_usage().startswith(f"Usage: {name} ")


def test_old_spelling_runs_with_a_hint_on_standard_error(site: Site) -> None:
    enabled = site.environment() | {DISABLED_VARIABLE: ""}
    done = subprocess.run(
        [PARALLAX, "codes", "list"], env=enabled, cwd=site.folder, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout.startswith("there are no join codes")) == (0, True)
    assert done.stderr == "hint: `parallax codes` is now `parallax cluster codes`\n"
    asked = site.run("complete", "Once", "--url", "http://127.0.0.1:9/v1")
    assert asked.stderr.startswith("hint: `parallax complete` is now `parallax chat --raw`\nerror: no server answers")


def test_old_spellings_are_not_listed() -> None:
    listed = {name for lines in list_headings(set()).values() for name in lines} | COMMANDS.keys()
    assert listed & OLD.keys() == set()


@pytest.mark.parametrize("name", [*OWNERS, "codes", "relay"])
def test_command_that_is_not_installed_names_its_distribution(name: str) -> None:
    with pytest.raises(UsageError, match="is a command of parallax-") as caught:
        refuse_missing(name)
    assert caught.value.hint.startswith("pip install parallax-")
    assert find_old(name, lambda _: None) is None


def test_word_that_is_no_command_is_nobodys() -> None:
    refuse_missing("xyzzy")
    assert find_old("xyzzy", load_command) is None

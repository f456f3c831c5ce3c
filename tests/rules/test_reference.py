"""The reference of the command line lists all commands, options and variables, and no others."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.core import TyperGroup

from parallax_core.cli import COMMANDS, HIDDEN, load_command
from parallax_core.cli import app as root
from parallax_core.cli.plugin_commands import GROUP, find_commands
from parallax_core.config.config import Config
from parallax_core.config.schema import list_keys
from parallax_core.config.serve import ServeSettings
from parallax_core.config.source import name_variable
from parallax_core.plugins.host import PluginHost

ROOT = Path(__file__).parents[2]
CLI = (ROOT / "docs/reference/cli.md").read_text(encoding="utf-8")

ALSO = {"parallax cluster join", "parallax cluster nodes", "parallax cluster run"}
"""Commands that are on the page without that word."""
ON_PAGE = {
    "parallax-batch",
    "parallax-chat",
    "parallax-cluster",
    "parallax-core",
    "parallax-engines",
    "parallax-manage",
    "parallax-netcheck",
    "parallax-operate",
    "parallax-quantize",
    "parallax-scaffold",
    "parallax-simulate",
}
"""The distributions whose commands the page describes."""
MOST_COMMANDS = 13
"""Of core and of the cluster, listed by ``parallax --help``; plugins' have a heading of their own."""
MOST_OPTIONS = {"parallax serve": 30, "parallax run": 36}
MOST_OF_OTHERS = 34
"""The options that the help of a command may show; others are settings."""
COMMON = {"--help"}
"""Options that every command has and no page lists."""


def list_commands(command: Any, name: str) -> Iterator[tuple[str, Any]]:
    """Yield a command and its sub-commands, each with its full name."""
    yield name, command
    if isinstance(command, TyperGroup):
        context: Any = None
        for below in command.list_commands(context):
            yield from list_commands(command.get_command(context, below), f"{name} {below}")


def every_command() -> Iterator[tuple[str, Any]]:
    """Yield every command of the command line, with its full name."""
    yield "parallax", typer.main.get_command(root)
    for name in (*COMMANDS, *HIDDEN, *find_owned()):
        for full, command in list_commands(load_command(name), f"parallax {name}"):
            if not any(f"{full} ".startswith(f"{each} ") for each in ALSO):
                yield full, command


def find_owned() -> list[str]:
    """Return the commands of the distributions that are on the page."""
    points = {name: points[0] for name, points in find_commands().items()}
    return [name for name, point in points.items() if point.dist is not None and point.dist.name in ON_PAGE]


def list_options(command: Any) -> set[str]:
    """Return the long options that the help of a command shows."""
    shown = [each for each in command.params if not getattr(each, "hidden", False)]
    return {option for parameter in shown for option in parameter.opts if option.startswith("--")} - COMMON


@pytest.mark.parametrize(("name", "command"), list(every_command()), ids=str)
def test_options_of_a_command_are_on_its_page(name: str, command: Any) -> None:
    section = CLI.partition(f"\n## `{name}`\n")[2].partition("\n## ")[0] or CLI.partition("\n## ")[0]
    assert {option for option in list_options(command) if not re.search(rf"{option}(?![\w-])", section)} == set()


@pytest.mark.parametrize(("name", "command"), list(every_command()), ids=str)
def test_options_of_a_command_have_a_word_for_their_value(name: str, command: Any) -> None:
    shown = command.make_context(name, [], resilient_parsing=True).get_help()
    assert re.findall(r"^ *(--\S+ <(?:str|int|float|path|list)\b.*?>)", shown, re.MULTILINE) == []


@pytest.mark.parametrize(("name", "command"), list(every_command()), ids=str)
def test_help_shows_few_options(name: str, command: Any) -> None:
    assert len(list_options(command) | COMMON) <= MOST_OPTIONS.get(name, MOST_OF_OTHERS)


def test_help_shows_few_commands() -> None:
    ours = {name for name, (point, *_) in find_commands().items() if point.group != GROUP and " " not in name}
    assert len(COMMANDS.keys() | ours) <= MOST_COMMANDS


def test_settings_without_an_option_are_on_the_page() -> None:
    section = CLI.partition("\n## `parallax serve`\n")[2].partition("\n## ")[0]
    keys = {name for name, key in list_keys(ServeSettings).items() if key.is_advanced}
    assert set(re.findall(r"^\| `(\w+)=", section, re.MULTILINE)) == keys


def test_help_of_a_group_says_whole_sentences() -> None:
    groups = [(name, command) for name, command in every_command() if getattr(command, "commands", None)]
    pages = [command.make_context(name, [], resilient_parsing=True).get_help() for name, command in groups]
    cut = [line for page in pages for line in page.partition("Commands:")[2].splitlines() if line.endswith("...")]
    assert cut == []


def test_page_names_no_option_that_is_not_there() -> None:
    options = set[str]().union(*(list_options(command) for _, command in every_command()), COMMON)
    assert set(re.findall(r"(?<![\w-])--[a-z][\w-]*", CLI)) - options == set()


def test_page_names_every_command() -> None:
    first = CLI.partition("\n## ")[0]
    words = {name.removeprefix("parallax").split()[-1] for name, _ in every_command() if name != "parallax"}
    assert {word for word in words if not re.search(rf"`[^`]*\b{word}\b", first)} == set()


def test_page_names_every_variable_of_ours() -> None:
    sources = [*ROOT.glob("parallax_core/**/*.py"), *ROOT.glob("plugins/*/parallax_*/**/*.py")]
    used = {name for path in sources for name in re.findall(r"PARALLAX_[A-Z_]+", path.read_text(encoding="utf-8"))}
    assert used | set(list_option_variables()) == set(re.findall(r"PARALLAX_[A-Z_]+", CLI))


def list_option_variables() -> Iterator[str]:
    """Yield the environment variable of each backend option."""
    host = PluginHost.prepare(Config())
    sections = {offer.spec.schema.target: offer.spec.name for offer in host.settings().offers}
    for offer in host.backends().offers:
        if offer.spec.options is not None:
            keys = list_keys(offer.load(offer.spec.options))
            yield from (name_variable(sections[offer.spec.options.target], key) for key in keys)

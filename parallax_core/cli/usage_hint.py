"""Finds what to say of words that no command understands."""

from __future__ import annotations

import re
import sys
from collections.abc import Collection, Iterable, Iterator
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from typer.core import TyperGroup

from parallax_core.cli.old_commands import OLD
from parallax_core.cli.old_options import find_hint

if TYPE_CHECKING:
    from typer.exceptions import TyperException

GROUPS = ("models", "engines", "plugins")
"""Commands with sub-commands that each installation has, in the order in which these are suggested."""
GUESS = re.compile(r"(?<=\.) Did you mean (?P<names>'.*')\?$| \(Possible options: .*\)$")
"""What Typer adds to the message for a sub-command or an option that does not exist."""


def describe_error(error: TyperException, commands: Collection[str]) -> tuple[str, str]:
    """Return the message and the hint for an error in ``sys.argv``, with the names of all ``commands``.

    What was meant is in the hint alone.
    """
    return GUESS.sub("", error.format_message()), _choose_hint(error, commands)


def _choose_hint(error: TyperException, commands: Collection[str]) -> str:
    """Return the hint for an error in ``sys.argv``, with the names of all ``commands``."""
    word = next((each for each in sys.argv[1:2] if not each.startswith("-")), "")
    if word in commands or word in OLD:
        command = _name_command(error) or word
        old = find_hint(word, getattr(error, "option_name", ""))
        return old or _write_guess(_list_guesses(error, command)) or f"see `parallax {command} --help`"
    near = list(_find_sub_commands(word))
    near = near or get_close_matches(word, [*commands, *OLD, "--help", "--version"], n=1)
    near = near or list(_find_sub_commands(word, depth=2))
    return _write_guess(f"parallax {OLD.get(each, each)}" for each in near) or "see `parallax --help`"


def _list_guesses(error: TyperException, command: str) -> list[str]:
    """Return what may have been meant by an option or a sub-command of a command, as Typer guesses it."""
    if options := getattr(error, "possibilities", None):
        return sorted(options)
    found = GUESS.search(error.format_message())
    return [f"parallax {command} {name}" for name in re.findall(r"'([^']+)'", found["names"])] if found else []


def _write_guess(words: Iterable[str]) -> str:
    """Return a hint that asks whether one of some words was meant; empty if there is no word."""
    meant = " or ".join(f"`{each}`" for each in words)
    return f"did you mean {meant}?" if meant else ""


def _name_command(error: TyperException) -> str:
    """Return the command in which an error is, such as ``models pull``; empty: it is not known."""
    names: list[str] = []
    context = getattr(error, "ctx", None)
    while context is not None and context.parent is not None:
        names.insert(0, context.info_name)
        context = context.parent
    return " ".join(OLD.get(name, name) if number == 0 else name for number, name in enumerate(names))


def _find_sub_commands(word: str, depth: int = 1) -> Iterator[str]:
    """Yield the sub-commands that have a name, such as ``models pull`` for ``pull``, at most ``depth`` groups below."""
    from parallax_core.cli import load_command
    from parallax_core.cli.plugin_commands import list_groups

    for group in (*GROUPS, *list_groups()):
        yield from (f"{group} {name}" for name in _walk(load_command(group), word, depth))


def _walk(command: Any, word: str, depth: int) -> Iterator[str]:  # noqa: ANN401 -- the type is private to typer
    if not isinstance(command, TyperGroup) or not word:
        return
    context: Any = None  # neither Typer nor this program needs one for names
    for name in command.list_commands(context):
        if name == word:
            yield name
        elif depth > 1:
            yield from (f"{name} {below}" for below in _walk(command.get_command(context, name), word, depth - 1))

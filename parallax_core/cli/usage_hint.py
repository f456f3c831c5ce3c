"""Finds the hint for words that no command understands."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator
from difflib import get_close_matches
from typing import TYPE_CHECKING

from parallax_core.cli.old_options import find_hint

if TYPE_CHECKING:
    from typer.exceptions import TyperException

GROUPS = ("models", "codes", "engines", "plugin")
"""The commands that have sub-commands, in the order in which these are suggested."""


def find_usage_hint(error: TyperException, commands: Collection[str]) -> str:
    """Return the hint for an error in ``sys.argv``, with the names of all ``commands``."""
    word = next((each for each in sys.argv[1:2] if not each.startswith("-")), "")
    if word in commands:
        old = find_hint(word, getattr(error, "option_name", ""))
        return old or f"see `parallax {_name_command(error) or word} --help`"
    near = list(_find_sub_commands(word)) or get_close_matches(word, [*commands, "--help", "--version"], n=1)
    return f"did you mean {' or '.join(f'`parallax {each}`' for each in near)}?" if near else "see `parallax --help`"


def _name_command(error: TyperException) -> str:
    """Return the command in which an error is, such as ``models pull``; empty: it is not known."""
    names: list[str] = []
    context = getattr(error, "ctx", None)
    while context is not None and context.parent is not None:
        names.insert(0, context.info_name)
        context = context.parent
    return " ".join(names)


def _find_sub_commands(word: str) -> Iterator[str]:
    """Yield the sub-commands that have a name, such as ``models pull`` for ``pull``."""
    from parallax_core.cli import load_command

    if word:
        yield from (f"{group} {word}" for group in GROUPS if word in load_command(group).commands)

"""Options of the other program of this name get a hint that says what to write."""

from __future__ import annotations

import pytest

from parallax_core.cli import list_names
from parallax_core.cli.old_options import OPTIONS, find_hint


@pytest.mark.parametrize(
    ("command", "option", "hint"),
    [
        ("run", "-m", "`parallax run MODEL`"),
        ("run", "-n", "--nodes"),
        ("join", "-s", "`parallax join`"),
        ("chat", "-s", "--url"),
        ("join", "-r", "--relay"),
        ("run", "--x", ""),
        ("doctor", "-m", ""),
    ],
)
def test_hint_says_what_to_write(command: str, option: str, hint: str) -> None:
    found = find_hint(command, option)
    assert hint in found
    assert bool(found) == bool(hint)
    assert "{" not in found


def test_hints_are_for_commands_that_exist() -> None:
    assert {command for hints in OPTIONS.values() for command in hints} <= set(list_names())

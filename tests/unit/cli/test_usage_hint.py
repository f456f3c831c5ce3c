"""What is suggested for words that no command understands."""

from __future__ import annotations

import sys

import pytest
from typer.core import TyperGroup
from typer.exceptions import TyperException

from parallax_core.cli import COMMANDS, app, list_names, load_command
from parallax_core.cli.usage_hint import GROUPS, describe_error


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        ("pull x", "did you mean `parallax models pull`?"),
        ("revoke x", "did you mean `parallax cluster codes revoke`?"),
        ("promot", "did you mean `parallax cluster promote`?"),
        ("cluster jon", "did you mean `parallax cluster join`?"),
        ("codes lst", "did you mean `parallax cluster codes list`?"),
        ("promote --xyzzy", "see `parallax cluster promote --help`"),
        ("list", "did you mean `parallax models list` or `parallax engines list`?"),
        ("version", "did you mean `parallax --version`?"),
        ("help", "did you mean `parallax --help`?"),
        ("sevre", "did you mean `parallax serve`?"),
        ("xyzzy", "see `parallax --help`"),
        ("--sevre", "see `parallax --help`"),
        ("models pull", "see `parallax models pull --help`"),
        ("models xyzzy", "see `parallax models --help`"),
        ("models lst", "did you mean `parallax models list`?"),
        ("bench srve", "did you mean `parallax bench serve`?"),
        ("chat --maxtokens 3", "did you mean `--max-tokens`?"),
        ("chat --xyzzy 3", "see `parallax chat --help`"),
        ("chat --temperature hot", "see `parallax chat --help`"),
        ("run -m x", "name the model itself, as in `parallax run MODEL`"),
    ],
)
def test_hint_names_what_was_meant_or_where_to_look(words: str, hint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["parallax", *words.split()])
    with pytest.raises(TyperException) as caught:
        app(standalone_mode=False)
    message, found = describe_error(caught.value, list_names())
    assert found == hint
    assert "ossible options" not in message
    assert "id you mean" not in message


def test_groups_are_the_commands_with_sub_commands() -> None:
    names = (*COMMANDS, "config", "doctor", "engines", "models", "plugins")
    assert set(GROUPS) == {name for name in names if isinstance(load_command(name), TyperGroup)}

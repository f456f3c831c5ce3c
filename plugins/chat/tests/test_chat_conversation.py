from __future__ import annotations

from pathlib import Path

import pytest

from parallax_chat.conversation import COMMANDS, Conversation
from parallax_client.client import Client
from parallax_core.api import UsageError


@pytest.fixture
def talk() -> Conversation:
    talk = Conversation(Client("http://127.0.0.1:1/v1"), "m", {"temperature": 0.5})
    talk.begin("be brief")
    talk.turns += [{"role": "user", "content": "é"}, {"role": "assistant", "content": "yes"}]
    return talk


def run(talk: Conversation, line: str) -> str:
    shown = talk.run(line)
    assert shown is not None
    return shown


def test_text_is_no_command(talk: Conversation) -> None:
    assert [talk.run(line) for line in ("hello", "/etc/passwd is a file", "/unknown", "", "/")] == [None] * 5


def test_help_lists_every_command(talk: Conversation) -> None:
    assert [line.split()[0] for line in run(talk, "/help").splitlines()] == [each.split()[0] for each in COMMANDS]


def test_clear_keeps_the_instructions(talk: Conversation) -> None:
    run(talk, "/clear")
    assert talk.turns == [{"role": "system", "content": "be brief"}]


def test_system_replaces_the_instructions_and_shows_them(talk: Conversation) -> None:
    assert run(talk, "/system be kind") == run(talk, "/system") == "be kind"
    assert [turn["role"] for turn in talk.turns] == ["system", "user", "assistant"]
    talk.begin("")
    assert run(talk, "/system") == "there are no instructions"


def test_set_changes_fields_of_the_requests(talk: Conversation) -> None:
    assert run(talk, "/set max_tokens 5") == "temperature = 0.5\nmax_tokens = 5"
    run(talk, "/set reasoning_effort low")
    run(talk, "/set temperature")
    assert talk.options == {"max_tokens": 5, "reasoning_effort": "low"}
    with pytest.raises(UsageError, match="set by the chat itself"):
        talk.run("/set messages []")


def test_conversation_is_saved_and_loaded(talk: Conversation, tmp_path: Path) -> None:
    path, turns = tmp_path / "my chat.json", list(talk.turns)
    assert "3 turns saved" in run(talk, f'/save "{path}"')
    run(talk, "/clear")
    assert "3 turns loaded" in run(talk, f"/load '{path}'")
    assert talk.turns == turns


@pytest.mark.parametrize("line", ["/save", "/load", "/save a b", '/load "open', "/load /nowhere/x", "/save /nowhere/x"])
def test_file_that_cannot_be_used_is_an_error(talk: Conversation, line: str) -> None:
    with pytest.raises(UsageError):
        talk.run(line)


@pytest.mark.parametrize("content", ["", "{", "5", "[1]", '[{"role": "user"}]', '{"role": 1}'])
def test_file_that_is_no_conversation_changes_nothing(talk: Conversation, tmp_path: Path, content: str) -> None:
    path, turns = tmp_path / "x.json", list(talk.turns)
    path.write_text(content)
    with pytest.raises(UsageError, match="cannot be read as a conversation"):
        talk.run(f"/load {path}")
    assert talk.turns == turns

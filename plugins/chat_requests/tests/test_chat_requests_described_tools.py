"""What models without tools in their chat templates are told of tools, calls and results."""

from __future__ import annotations

from typing import Any

import pytest

from parallax_chat_requests.described_tools import describe_tools, encode_described, write_calls
from parallax_core.base.errors import InvalidRequest
from parallax_core.models.chat_template import Arguments

TOOL = {"type": "function", "function": {"name": "look_up", "description": "Ünder", "parameters": {"type": "object"}}}
USER = {"role": "user", "content": "hi"}
SYSTEM = {"role": "system", "content": "Be brief."}


@pytest.mark.parametrize(
    ("forced", "words"),
    [(None, "If no function helps"), ("", "Call one or more"), ("look_up", "Call the function look_up")],
)
def test_description_has_each_tool_and_how_to_call_it(forced: str | None, words: str) -> None:
    told = describe_tools([TOOL], forced)
    assert '\n{"name": "look_up", "description": "Ünder", "parameters": {"type": "object"}}\n' in told
    assert words in told


def call(name: str, arguments: Any, **more: Any) -> dict[str, Any]:
    calls = [{"id": name, "type": "function", "function": {"name": name, "arguments": arguments}}]
    return {"role": "assistant", "content": None, "tool_calls": calls, **more}


def answer(name: str, content: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": name, "content": content}


def test_calls_and_results_become_turns_that_alternate() -> None:
    two = call("go", "not JSON", content="Hm.")
    two["tool_calls"] += call("look_up", Arguments({"w": "é"}))["tool_calls"]
    turns = [USER, two, answer("go", "1"), answer("look_up", "2"), USER, call("go", {}), answer("lost", "3")]
    assert write_calls(turns) == [
        USER,
        {
            "role": "assistant",
            "content": 'Hm.\n\n[{"name": "go", "arguments": "not JSON"}, {"name": "look_up", "arguments": {"w": "é"}}]',
        },
        {"role": "user", "content": "The result of go: 1\n\nThe result of look_up: 2\n\nhi"},
        {"role": "assistant", "content": '[{"name": "go", "arguments": {}}]'},
        {"role": "user", "content": "The result of a function: 3"},
    ]


def test_turns_without_calls_stay() -> None:
    turns = [SYSTEM, USER, USER, {"role": "assistant", "content": "hm"}]
    assert write_calls(turns) == turns


def encode(turns: Any) -> tuple[int, ...]:
    return tuple(len(turn["content"]) for turn in turns)


def refuse_system(turns: Any) -> tuple[int, ...]:
    if turns[0]["role"] == "system":
        message = "the model's chat template refuses these messages: no system"
        raise InvalidRequest(message, "messages")
    return encode(turns)


def test_description_is_in_the_system_turn_or_else_in_that_of_the_user() -> None:
    assert encode_described([USER], "told", encode) == (4, 2)
    assert encode_described([SYSTEM, USER], "told", encode) == (len("Be brief.\n\ntold"), 2)
    assert encode_described([USER, USER], "told", refuse_system) == (len("told\n\nhi"), 2)
    assert encode_described([{"role": "assistant", "content": "a"}], "told", refuse_system) == (4, 1)
    with pytest.raises(InvalidRequest, match="no system"):
        encode_described([SYSTEM, USER], "told", refuse_system)

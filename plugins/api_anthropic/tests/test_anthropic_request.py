"""Forced calls and answers of a fixed form through Anthropic's client; a toy draws what the grammar leaves it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import pytest

from tests.unit.server.test_chat_grammar import LETTER, ToySite

TOOLS: Any = [
    {"name": "spell", "input_schema": LETTER},
    {"name": "stop", "input_schema": {"type": "object", "additionalProperties": False}},
]
HELLO: Any = [{"role": "user", "content": "hi"}]


@pytest.fixture
def client(tmp_path: Path) -> Iterator[anthropic.Anthropic]:
    with ToySite(tmp_path) as site:
        yield anthropic.Anthropic(base_url="http://testserver", api_key="x", max_retries=0, http_client=site.http)


def create(client: anthropic.Anthropic, **fields: Any) -> Any:
    return client.messages.create(model="toy", messages=HELLO, max_tokens=300, **fields)


def test_named_tool_is_called_with_input_that_follows_its_schema(client: anthropic.Anthropic) -> None:
    choice: Any = {"type": "tool", "name": "spell"}
    for _ in range(3):
        fields: Any = {"tools": TOOLS, "tool_choice": choice}
        with client.messages.stream(model="toy", messages=HELLO, max_tokens=300, **fields) as stream:
            message = stream.get_final_message()
        [block] = message.content
        assert block.type == "tool_use"
        assert (message.stop_reason, block.name) == ("tool_use", "spell")
        assert block.input["letter"] in {"a", "é"}


def test_any_tool_is_called(client: anthropic.Anthropic) -> None:
    choice = {"type": "any", "disable_parallel_tool_use": True}
    [block] = create(client, tools=[{**TOOLS[0], "strict": True}], tool_choice=choice).content
    assert (block.type, block.name) == ("tool_use", "spell")


def test_strict_tool_needs_no_choice(client: anthropic.Anthropic) -> None:
    message = create(client, tools=[{**TOOLS[0], "strict": True}])
    is_cut = message.stop_reason == "max_tokens"  # of a call that is cut off, any part may be there
    for block in message.content:
        assert block.type == "text" or block.input.get("letter") in {"a", "é", *([None] if is_cut else [])}


def test_answer_has_the_form_that_is_asked_for(client: anthropic.Anthropic) -> None:
    [block] = create(client, output_config={"format": {"type": "json_schema", "schema": LETTER}}).content
    assert json.loads(block.text)["letter"] in {"a", "é"}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"tool_choice": {"type": "any"}}, "'tool_choice' forces a call of a tool that is not in 'tools'"),
        ({"tools": TOOLS, "tool_choice": {"type": "tool", "name": "x"}}, "of a tool that is not in 'tools'"),
        ({"tools": TOOLS, "tool_choice": {"type": "tool"}}, "'tool_choice.name' is for the type 'tool'"),
        ({"tools": TOOLS, "tool_choice": {"type": "any", "name": "spell"}}, "'tool_choice.name' is for the type"),
        ({"tools": [TOOLS[0], TOOLS[0]]}, "'tools' has two tools of the same name"),
        ({"output_config": {"format": {"type": "json_schema", "schema": {"not": {}}}}}, "'output_config.format'"),
        ({"output_config": {"effort": "none"}}, "'output_config.effort'"),
    ],
)
def test_contradiction_is_refused_by_name(client: anthropic.Anthropic, fields: Any, message: str) -> None:
    with pytest.raises(anthropic.BadRequestError) as caught:
        create(client, **fields)
    body: Any = caught.value.body
    assert message in body["error"]["message"]


def test_answer_with_tools_has_the_form_or_calls(client: anthropic.Anthropic) -> None:
    message = create(client, tools=TOOLS, output_config={"format": {"type": "json_schema", "schema": LETTER}})
    if message.stop_reason == "end_turn":
        assert json.loads(message.content[0].text)["letter"] in {"a", "é"}
    else:
        assert message.stop_reason in {"tool_use", "max_tokens"}

"""Calls by a list in JSON, which models without a format for calls write: from the parser to all three APIs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anthropic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from parallax_core.api import Content, Parser, Piece, Reasoning, ToolCall
from parallax_core.models.tokenizer import ModelTokenizer
from parallax_core.server.body_messages import BodyRequest, ParsedBody, ParserTraits, RefusedBody
from parallax_core.server.body_reader import BodyReader
from parallax_core.testing.parser import ParserConformance, find_lost, join_pieces
from parallax_grammars.listed_calls import BEGIN, ListedCallParser
from tests.conformance.parsers import ThinkParser
from tests.unit.server.dialects import BODIES
from tests.unit.server.scripted import HERMES, ScriptedSite, only_reasoning
from tests.unit.server.test_chat_grammar import ASK, LETTER, NAMED, TOOLS, LossySite
from tests.unit.tinymodel import write_model

NAMES = {"spell", "stop"}
CALLS = '[{"name": "spell", "arguments": {"letter": "é"}}, {"name": "stop", "arguments": {}}]'
FOUND = [ToolCall(0, "spell", '{"letter": "é"}'), ToolCall(1, "stop", "{}")]


class TestListedCalls(ParserConformance):
    marks = ("<think>", "</think>", "</think>\n")
    samples = (
        (CALLS, FOUND),
        ("<think>hm</think>\n" + CALLS, [Reasoning("hm"), *FOUND]),
        ("[link] and more", [Content("[link] and more")]),
        ('[{"name": "other", "arguments": {}}]', [Content('[{"name": "other", "arguments": {}}]')]),
    )

    def make_parser(self) -> Parser:
        return ListedCallParser(ThinkParser(), NAMES)

    def test_answer_that_breaks_off_loses_nothing(self) -> None:
        """But a list that was cut off before its first call, which is no text."""
        for text, _ in self.samples:
            for stop in range(len(text)):
                lost = find_lost(text[:stop], parse([text[:stop]]), self.marks)
                assert lost == "" or (len(lost) > 1 and BEGIN.startswith("".join(lost.split())[: len(BEGIN)]))


def parse(parts: Sequence[str]) -> list[Piece]:
    parser = ListedCallParser(ThinkParser(), NAMES)
    return join_pieces([*[piece for part in parts for piece in parser.feed(part)], *parser.finish()])


@given(st.lists(st.text('[{}]":,\\ nameargumtspoli', max_size=9), max_size=9))
def test_cuts_make_no_difference_whatever_the_text(parts: list[str]) -> None:
    assert parse(parts) == parse(["".join(parts)])


PLAIN = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{{ eos_token }}{% endfor %}"
"""A template without tools."""


LETTERS = (
    '{"type": "object", "properties": {"name": {"const": "x"}}, "required": ["name"], "additionalProperties": false}'
)
CALL: dict[str, Any] = {"id": "a", "type": "function", "function": {"name": "stop", "arguments": "{}"}}


class PlainSite(ScriptedSite):
    """A server of a model without a format for calls, which writes what a script says."""

    def __init__(self, folder: Path, **options: Any) -> None:
        super().__init__(folder, options.pop("spec", None), template=PLAIN, **options)


@pytest.mark.parametrize("spec", [None, only_reasoning(HERMES), HERMES])
def test_model_without_a_format_calls_tools(tmp_path: Path, spec: Any) -> None:
    with PlainSite(tmp_path, spec=spec) as site:
        [choice] = site.ask(CALLS, tools=TOOLS).choices
        [other] = site.ask("[No] need.", tools=TOOLS).choices
        prompt = site.prompt
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content is None
    assert [(call.function.name, call.function.arguments) for call in choice.message.tool_calls] == [
        ("spell", '{"letter": "é"}'),
        ("stop", "{}"),
    ]
    assert (other.finish_reason, other.message.content) == ("stop", "[No] need.")
    assert prompt.startswith("<system>You can call these functions.")
    assert json.dumps(TOOLS[0]["function"]["parameters"]["properties"], ensure_ascii=False) in prompt


@pytest.mark.parametrize("most", [2, 9, 18, 32])
def test_list_that_is_cut_off_is_no_text(tmp_path: Path, most: int) -> None:
    with PlainSite(tmp_path) as site:
        [choice] = site.ask(CALLS, tools=TOOLS, max_tokens=most).choices
        [text] = site.ask("[" + CALLS, tools=TOOLS, max_tokens=1).choices
    assert (choice.finish_reason, choice.message.content or "") == ("length", "")
    assert text.message.content == "["


def test_tokenize_describes_tools_as_chat_does(tmp_path: Path) -> None:
    turns = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "", "tool_calls": [CALL]}]
    turns.append({"role": "tool", "tool_call_id": "a", "content": "5"})
    with PlainSite(tmp_path) as site:
        site.ask("Hello.", tools=TOOLS, messages=turns)
        told = site.http.post("/tokenize", json={"messages": turns, "tools": TOOLS}).json()
        assert told["tokens"] == list(site.engine.requests[-1].prompt)
        assert "<assistant>" + json.dumps([CALL["function"]]).replace('"{}"', "{}") in site.prompt


def test_calls_of_models_without_a_format_are_streamed(tmp_path: Path) -> None:
    with PlainSite(tmp_path) as site:
        chunks = list(site.ask("a [ {", tools=TOOLS, stream=True))
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "a [ {"
        calls = list(site.ask(CALLS, tools=TOOLS, stream=True))
    names = [call.function.name for chunk in calls for call in chunk.choices[0].delta.tool_calls or ()]
    assert [name for name in names if name] == ["spell", "stop"]
    assert calls[-1].choices[0].finish_reason == "tool_calls"


def test_messages_and_responses_call_tools_by_a_list_too(tmp_path: Path) -> None:
    with PlainSite(tmp_path) as site:
        site.engine.scripts += [CALLS, CALLS]
        client = anthropic.Anthropic(base_url="http://testserver", api_key="x", max_retries=0, http_client=site.http)
        tool: Any = {"name": "spell", "input_schema": LETTER}
        messages: Any = [{"role": "user", "content": "hi"}]
        message = client.messages.create(model="toy", max_tokens=200, messages=messages, tools=[tool])
        function: Any = {"type": "function", **TOOLS[0]["function"]}
        made: Any = site.openai.responses.create(model="toy", input="hi", tools=[function])
    assert (message.stop_reason, message.content[0].type) == ("tool_use", "tool_use")
    assert made.output[0].type == "function_call"
    assert made.output[0].arguments == '{"letter": "é"}'


def test_answer_of_a_form_may_be_a_list_of_calls(tmp_path: Path) -> None:
    form: Any = {"type": "json_schema", "json_schema": {"name": "it", "schema": json.loads(LETTERS)}}
    form["json_schema"]["schema"]["x-guidance"] = {"lenient": True}
    with PlainSite(tmp_path) as site:
        [choice] = site.ask('{"name": "x"}', tools=TOOLS, response_format=form).choices
        [call] = site.ask(CALLS, tools=TOOLS[:1], response_format=form, parallel_tool_calls=False).choices
    assert choice.message.content == '{"name": "x"}'
    assert call.finish_reason == "tool_calls"


class PlainLossySite(LossySite):
    """A pipeline of two stages, of which one is lost in the middle of an answer."""

    template = PLAIN

    def __init__(self, folder: Path) -> None:
        self.losses, self.num_opened = iter([9]), 0
        ScriptedSite.__init__(self, folder, None, template=PLAIN)


@pytest.mark.parametrize("choice", ["required", NAMED, "auto"])
def test_grammar_holds_over_stages(tmp_path: Path, choice: Any) -> None:
    with PlainLossySite(tmp_path) as site:
        for seed in range(2):
            [made] = site.openai.chat.completions.create(**ASK, tools=TOOLS, tool_choice=choice, seed=seed).choices
            calls = made.message.tool_calls or []
            assert bool(calls) or choice == "auto" or made.finish_reason == "length"
            for call in calls if made.finish_reason == "tool_calls" else ():
                assert json.loads(call.function.arguments) in ({"letter": "a"}, {"letter": "é"}, {})


def test_calls_of_their_own_accord_can_be_turned_off(tmp_path: Path) -> None:
    reader = BodyReader(ModelTokenizer(write_model(tmp_path, PLAIN)), "toy", BODIES, ParserTraits(may_list_calls=False))

    def read(**more: Any) -> Any:
        body = {"messages": [{"role": "user", "content": "hi"}], "tools": TOOLS, **more}
        return reader.answer(BodyRequest(kind="chat", body=json.dumps(body).encode())).content

    refused = read()
    assert isinstance(refused, RefusedBody)
    assert (refused.param, "untrained_tools" in refused.hint) == ("tools", True)
    assert isinstance(read(tool_choice=NAMED), ParsedBody)

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parallax_core.api import Content, Parser, Piece, Reasoning, ToolCall
from parallax_core.server.forced_calls import ForcedCallParser, make_grammar
from parallax_core.testing.parser import ParserConformance, join_pieces
from tests.conformance.parsers import ThinkParser

ARGUMENTS = '{"a": "}] \\" {", "b": [1, {"c": {}}]}'
SCHEMAS = {
    "look_up": '{"properties": {"w": {"$ref": "#/$defs/word"}}, "$defs": {"word": {"type": "string"}}}',
    "go": "{}",
}


class TestNamed(ParserConformance):
    marks = ("<think>", "</think>", "</think>\n")
    samples = (
        (ARGUMENTS, [ToolCall(0, "look_up", ARGUMENTS)]),
        ("<think>hm</think>\n{}", [Reasoning("hm"), ToolCall(0, "look_up", "{}")]),
    )

    def make_parser(self) -> Parser:
        return ForcedCallParser(ThinkParser(), "look_up")

    def test_text_without_marks_is_content(self) -> None:
        """The grammar allows no such text."""

    def test_what_is_certain_is_not_held_back(self) -> None:
        """The grammar allows no such text."""


class TestAny(TestNamed):
    samples = (
        (f'[{{"name": "look_up", "arguments": {ARGUMENTS}}}]', [ToolCall(0, "look_up", ARGUMENTS)]),
        (
            '<think>hm</think>[ {"name":"go","arguments":{}}, {"name": "look_up", "arguments": {"w": "é"}}\n]',
            [Reasoning("hm"), ToolCall(0, "go", "{}"), ToolCall(1, "look_up", '{"w": "é"}')],
        ),
    )

    def make_parser(self) -> Parser:
        return ForcedCallParser(ThinkParser(), "")


def parse(named: str, parts: Sequence[str]) -> list[Piece]:
    parser = ForcedCallParser(ThinkParser(), named)
    return join_pieces([*[piece for part in parts for piece in parser.feed(part)], *parser.finish()])


@given(st.lists(st.text('[{}]":,\\ nameargumts', max_size=9), max_size=9), st.sampled_from(["", "go"]))
def test_cuts_make_no_difference_whatever_the_text(parts: list[str], named: str) -> None:
    text = "".join(parts)
    assert parse(named, parts) == parse(named, [text]) == parse(named, list(text))


def test_text_that_is_no_call_is_not_lost() -> None:
    assert parse("", ["nothing"]) == [Content("nothing")]


@pytest.mark.parametrize(("named", "allows_many", "most"), [("", True, 16), ("", False, 1)])
def test_grammar_allows_the_tools_alone(named: str, most: int, *, allows_many: bool) -> None:
    grammar = make_grammar(SCHEMAS, named, allows_many=allows_many, after=("</think>",))
    schema: Any = json.loads(grammar.source)
    assert grammar.must_begin
    assert (grammar.kind, grammar.after, schema["minItems"], schema["maxItems"]) == (
        "json_schema",
        ("</think>",),
        1,
        most,
    )
    assert [each["properties"]["name"]["const"] for each in schema["items"]["anyOf"]] == ["look_up", "go"]
    assert schema["$defs"]["tool0"]["properties"]["w"] == {"$ref": "#/$defs/tool0/$defs/word"}
    assert schema["$defs"]["tool1"] == {"type": "object"}


def test_tools_whose_schemas_have_names_keep_their_own_parts() -> None:
    named = {"$id": "https://example.org/s.json", "properties": {"w": {"$ref": "s.json#/$defs/word"}}}
    schemas = {name: json.dumps({**named, "$defs": {"word": {"const": name}}}) for name in ("one", "two")}
    parts = json.loads(make_grammar(schemas, "", allows_many=True, after=()).source)["$defs"]
    assert [parts[place]["properties"]["w"] for place in parts] == [
        {"$ref": "#/$defs/tool0/$defs/word"},
        {"$ref": "#/$defs/tool1/$defs/word"},
    ]
    assert not any("$id" in part for part in parts.values())


def test_grammar_of_a_named_tool_is_its_schema() -> None:
    grammar = make_grammar(SCHEMAS, "look_up", allows_many=True, after=())
    assert json.loads(grammar.source) == {**json.loads(SCHEMAS["look_up"]), "type": "object"}

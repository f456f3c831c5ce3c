"""The grammars of answers that call tools in JSON: of calls that are forced, and of lists."""

from __future__ import annotations

import json
from typing import Any

import pytest

from parallax_core.api import Grammar
from parallax_core.models.tokenizer import ModelTokenizer
from parallax_grammars.json_calls import make_forced_grammar, make_list_grammar
from tests.support.grammar_walk import follow
from tests.unit.server.test_chat_grammar import LETTER
from tests.unit.tinymodel import write_model

CALLS = '[{"name": "spell", "arguments": {"letter": "é"}}, {"name": "stop", "arguments": {}}]'
SCHEMAS = {
    "look_up": '{"properties": {"w": {"$ref": "#/$defs/word"}}, "$defs": {"word": {"type": "string"}}}',
    "go": "{}",
}


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> ModelTokenizer:
    return ModelTokenizer(write_model(tmp_path_factory.mktemp("model")))


@pytest.mark.parametrize(("named", "allows_many", "most"), [("", True, 16), ("", False, 1)])
def test_grammar_allows_the_tools_alone(named: str, most: int, *, allows_many: bool) -> None:
    grammar = make_forced_grammar(SCHEMAS, named, allows_many=allows_many, after=("</think>",))
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
    parts = json.loads(make_forced_grammar(schemas, "", allows_many=True, after=()).source)["$defs"]
    assert [parts[place]["properties"]["w"] for place in parts] == [
        {"$ref": "#/$defs/tool0/$defs/word"},
        {"$ref": "#/$defs/tool1/$defs/word"},
    ]
    assert not any("$id" in part for part in parts.values())


def test_grammar_of_a_named_tool_is_its_schema() -> None:
    grammar = make_forced_grammar(SCHEMAS, "look_up", allows_many=True, after=())
    assert json.loads(grammar.source) == {**json.loads(SCHEMAS["look_up"]), "type": "object"}


LISTED = {"spell": json.dumps(LETTER), "stop": '{"type": "object", "additionalProperties": false}'}
LETTERS = (
    '{"type": "object", "properties": {"name": {"const": "x"}}, "required": ["name"], "additionalProperties": false}'
)


@pytest.mark.parametrize(
    ("answer", "many", "right", "wrong"),
    [
        ("", True, ["", "Hi.", " \nHi", "[x] {", "{}", CALLS, "\n" + CALLS], ['[{"name": "go"', CALLS + "."]),
        ("", False, [CALLS.partition(', {"name": "stop')[0] + "]"], [CALLS]),
        (LETTERS, True, [CALLS, '{"name": "x"}'], ["Hi.", "{}"]),
    ],
)
def test_answer_is_a_list_of_calls_or_what_else_is_allowed(
    text: ModelTokenizer, answer: str, right: list[str], wrong: list[str], *, many: bool
) -> None:
    grammar: Grammar = make_list_grammar(LISTED, allows_many=many, answer=answer)
    compiled = text.grammars.compile(grammar)
    assert [each for each in right if follow(text, compiled.start(), each) != (True, True)] == []
    assert [each for each in wrong if follow(text, compiled.start(), each) == (True, True)] == []

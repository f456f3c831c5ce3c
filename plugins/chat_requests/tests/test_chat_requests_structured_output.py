"""The fields that ask for structured output: what each means, and how wrong ones are refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from parallax_core.contracts.grammar import Grammar
from parallax_core.models.tokenizer import ModelTokenizer
from parallax_core.server.body_messages import BodyRequest, ParsedBody, RefusedBody
from parallax_core.server.body_reader import BodyReader
from tests.unit.server.dialects import BODIES
from tests.unit.tinymodel import write_model

SCHEMA = {"type": "object", "properties": {"b": {"type": "integer"}, "a": {"type": "string"}}}


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> BodyReader:
    return BodyReader(ModelTokenizer(write_model(tmp_path_factory.mktemp("model"))), "tiny", BODIES)


def make(fields: dict[str, Any], kind: Any = "chat") -> BodyRequest:
    prompt = {"messages": [{"role": "user", "content": "x"}]} if kind == "chat" else {"prompt": "x"}
    return BodyRequest(kind=kind, body=json.dumps({"model": "tiny", **prompt, **fields}).encode())


def format_as(schema: Any, **more: Any) -> dict[str, Any]:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "it", "schema": schema, **more}}}


@pytest.mark.parametrize("kind", ["chat", "completion"])
@pytest.mark.parametrize(
    ("fields", "grammar"),
    [
        ({}, None),
        ({"response_format": {"type": "text"}}, None),
        ({"response_format": None, "guided_json": None, "structured_outputs": {}}, None),
        ({"response_format": {"type": "json_object"}}, Grammar(kind="json_object")),
        (format_as(SCHEMA, strict=True), Grammar(kind="json_schema", source=json.dumps(SCHEMA))),
        (format_as(SCHEMA, strict=False, description="d"), Grammar(kind="json_schema", source=json.dumps(SCHEMA))),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "it"}}},
            Grammar(kind="json_object"),
        ),
        ({"structured_outputs": {"json": SCHEMA}}, Grammar(kind="json_schema", source=json.dumps(SCHEMA))),
        ({"structured_outputs": {"json": "{}"}}, Grammar(kind="json_schema", source="{}")),
        ({"structured_outputs": {"regex": "a+"}}, Grammar(kind="regex", source="a+")),
        ({"structured_outputs": {"choice": ["a", "b"]}}, Grammar(kind="choice", source='["a", "b"]')),
        ({"structured_outputs": {"json_object": True}}, Grammar(kind="json_object")),
        (
            {"structured_outputs": {"disable_any_whitespace": True}, "response_format": {"type": "json_object"}},
            Grammar(kind="json_object", whitespace=""),
        ),
        (
            {"structured_outputs": {"json_object": True, "whitespace_pattern": r"[\s]*|\s?"}},
            Grammar(kind="json_object", whitespace=r"[ \t\n\r]*|[ \t\n\r]?"),
        ),
        ({"guided_json": SCHEMA}, Grammar(kind="json_schema", source=json.dumps(SCHEMA))),
        ({"guided_regex": "a+"}, Grammar(kind="regex", source="a+")),
        ({"guided_choice": ["a"]}, Grammar(kind="choice", source='["a"]')),
        ({"guided_grammar": 'start: "a"'}, Grammar(kind="lark", source='start: "a"')),
    ],
)
def test_field_becomes_a_grammar(
    reader: BodyReader, kind: str, fields: dict[str, Any], grammar: Grammar | None
) -> None:
    content = reader.answer(make(fields, kind)).content
    assert isinstance(content, ParsedBody), content
    assert content.request.grammar == grammar


def test_ebnf_becomes_lark(reader: BodyReader) -> None:
    content = reader.answer(make({"structured_outputs": {"grammar": 'root ::= "a" | "b" [0-9]+'}})).content
    assert isinstance(content, ParsedBody), content
    assert content.request.grammar is not None
    assert "start:" in content.request.grammar.source


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"response_format": {"type": "xml"}}, "response_format.type", "'text', 'json_object' or 'json_schema'"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema", "is missing"),
        (
            {"response_format": {"type": "text", "json_schema": {"name": "a"}}},
            "response_format.json_schema",
            "only for",
        ),
        (format_as(SCHEMA, name="a b"), "response_format.json_schema.name", "must match"),
        (format_as(SCHEMA, schemas={}), "response_format.json_schema.schemas", "unknown field"),
        (format_as("string"), "response_format.json_schema.schema", "must be an object"),
        ({"structured_outputs": {"regex": "a", "choice": ["a"]}}, "structured_outputs", "'regex' and 'choice'"),
        ({"structured_outputs": {"whitespace_pattern": " "}}, "structured_outputs", "no form"),
        (
            {"structured_outputs": {"json": {}, "whitespace_pattern": "[ a]"}},
            "structured_outputs.whitespace_pattern",
            "more than white space",
        ),
        (
            {"structured_outputs": {"json": {}, "whitespace_pattern": " ", "disable_any_whitespace": True}},
            "structured_outputs.whitespace_pattern",
            "only one",
        ),
        ({"structured_outputs": {"json": {}, "white_space": " "}}, "structured_outputs.white_space", "unknown"),
        ({"structured_outputs": {"grammar": 'root ::= ("a"'}}, "structured_outputs", "Lark or EBNF"),
        ({"guided_choice": []}, "guided_choice", "must not be empty"),
        ({"guided_choice": ["\ud800"]}, "guided_choice.0", "Unicode"),
        ({"guided_json": {}, **format_as(SCHEMA)}, "guided_json", "send only one"),
        ({"guided_json": {}, "ignore_eos": True}, "ignore_eos", "leave 'ignore_eos' out"),
    ],
)
def test_field_that_cannot_be_honoured_is_refused_by_name(
    reader: BodyReader, fields: dict[str, Any], param: str, words: str
) -> None:
    content = reader.answer(make(fields)).content
    assert isinstance(content, RefusedBody), content
    assert (content.kind, content.param) == ("invalid", param)
    assert words in content.message

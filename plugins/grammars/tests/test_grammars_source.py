"""Grammars in llguidance's own form."""

from __future__ import annotations

import json

import pytest

from parallax_core.api import InvalidRequest
from parallax_core.api.grammars import Grammar, GrammarKind
from parallax_core.models.tokenizer import ModelTokenizer
from parallax_grammars.source import COMPACT, translate_whole
from tests.support.grammar_walk import follow
from tests.unit.tinymodel import write_model

OPTIONS = {"lenient": False, "coerce_one_of": False, **COMPACT}


def read_lark(source: str) -> str:
    [part] = json.loads(translate_whole(Grammar(kind="lark", source=source)))["grammars"]
    return str(part["lark_grammar"])


def test_json_schemas_within_lark_are_rewritten() -> None:
    schema = {"type": "string", "format": "path", "description": "as %json {}"}
    lark = read_lark(f"start: a b\na: %json {json.dumps(schema)}\nb: %json true")
    first, second = (json.loads(line.partition("%json")[2]) for line in lark.splitlines()[1:])
    assert first == {"type": "string", "description": "as %json {}", "x-guidance": OPTIONS}
    assert second == {"x-guidance": OPTIONS}


@pytest.mark.parametrize(
    "lark",
    ['start: "%json {}"', "start: /%json {}/", "start: a // %json {}", "start: %json {bad", 'start: "\\"%json {}"'],
)
def test_mark_of_a_schema_that_begins_none_is_left_alone(lark: str) -> None:
    assert read_lark(lark) == lark


def test_options_that_a_schema_within_lark_has_stay() -> None:
    assert read_lark('start: %json {"x-guidance": {"item_separator": ", "}}').endswith('{"item_separator": ", "}}')


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> ModelTokenizer:
    return ModelTokenizer(write_model(tmp_path_factory.mktemp("model")))


SPACED = [
    '{"a":1,"b":[1,2]}',
    '{"a": 1, "b": [1, 2]}',
    '{ "a":1 }',
    '{"a" :1}',
    '{"a":  1}',
    '{"a":\n 1}',
    '{\n  "a": 1\n}',
    '{"a":\u00a01}',
]
"""Texts of one object, with more and more white space."""


@pytest.mark.parametrize("kind", ["json_object", "json_schema", "lark"])
@pytest.mark.parametrize(
    ("whitespace", "allowed"),
    [(None, SPACED[:2]), ("", SPACED[:1]), (r"[ \t\n\r]*", SPACED[:-1]), (" ?", SPACED[:4])],
)
def test_white_space_is_compact_unless_a_request_asks_for_other(
    text: ModelTokenizer, kind: GrammarKind, whitespace: str | None, allowed: list[str]
) -> None:
    source = {"json_object": "", "json_schema": '{"type": "object"}', "lark": 'start: %json {"type": "object"}'}[kind]
    compiled = text.grammars.compile(Grammar(kind=kind, source=source, whitespace=whitespace))
    assert [answer for answer in SPACED if follow(text, compiled.start(), answer) == (True, True)] == allowed


def test_expression_of_white_space_that_is_none_is_refused(text: ModelTokenizer) -> None:
    with pytest.raises(InvalidRequest, match="unclosed"):
        text.grammars.compile(Grammar(kind="json_object", whitespace="("))

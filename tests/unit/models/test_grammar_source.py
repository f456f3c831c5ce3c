"""Grammars in llguidance's own form."""

from __future__ import annotations

import json

import pytest

from parallax_core.api import Grammar
from parallax_core.models.grammar_source import JSON_OPTIONS, translate_whole


def read_lark(source: str) -> str:
    [part] = json.loads(translate_whole(Grammar(kind="lark", source=source)))["grammars"]
    return str(part["lark_grammar"])


def test_json_schemas_within_lark_are_rewritten() -> None:
    schema = {"type": "string", "format": "path", "description": "as %json {}"}
    lark = read_lark(f"start: a b\na: %json {json.dumps(schema)}\nb: %json true")
    first, second = (json.loads(line.partition("%json")[2]) for line in lark.splitlines()[1:])
    assert first == {"type": "string", "description": "as %json {}", "x-guidance": JSON_OPTIONS}
    assert second == {"x-guidance": JSON_OPTIONS}


@pytest.mark.parametrize(
    "lark",
    ['start: "%json {}"', "start: /%json {}/", "start: a // %json {}", "start: %json {bad", 'start: "\\"%json {}"'],
)
def test_mark_of_a_schema_that_begins_none_is_left_alone(lark: str) -> None:
    assert read_lark(lark) == lark


def test_options_that_a_schema_within_lark_has_stay() -> None:
    assert read_lark('start: %json {"x-guidance": {"item_separator": ", "}}').endswith('{"item_separator": ", "}}')

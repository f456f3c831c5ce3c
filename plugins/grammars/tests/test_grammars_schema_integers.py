"""Integers within 64 bits, and schemas that define each kind of them once."""

from __future__ import annotations

import json
from typing import Any

import pytest

from parallax_core.api.grammars import Grammar
from parallax_core.models.tokenizer import ModelTokenizer
from parallax_grammars.schema_integers import LARGEST, PREFIX, SMALLEST, bound_integers, share_integers
from tests.support.grammar_walk import follow
from tests.unit.tinymodel import write_model

WHOLE = {"type": "integer"}
ALL = {"minimum": SMALLEST, "maximum": LARGEST}


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> ModelTokenizer:
    return ModelTokenizer(write_model(tmp_path_factory.mktemp("model")))


@pytest.mark.parametrize(
    ("given", "bounds"),
    [
        ({}, ALL),
        ({"minimum": 0, "default": 3}, {"minimum": 0, "default": 3, "maximum": LARGEST}),
        ({"minimum": -(2**63), "maximum": 2**64 - 1}, ALL),
        ({"exclusiveMinimum": 0, "exclusiveMaximum": 9}, {"exclusiveMinimum": 0, "exclusiveMaximum": 9}),
        ({"exclusiveMinimum": -(2**70), "exclusiveMaximum": 2**70}, ALL),
        ({"maximum": 5, "multipleOf": 5}, {"maximum": 5, "multipleOf": 5, "minimum": SMALLEST}),
        ({"const": 2**70}, {"const": 2**70}),
    ],
)
def test_integers_are_bounded_as_the_schema_or_64_bits_say(given: dict[str, Any], bounds: dict[str, Any]) -> None:
    assert bound_integers({**WHOLE, **given}) == {**WHOLE, **bounds}


def test_other_numbers_are_not_bounded() -> None:
    kinds: list[Any] = ["number", ["integer", "number"], "string", None]
    assert [bound_integers({"type": kind}) for kind in kinds] == [{"type": kind} for kind in kinds]
    optional = ["integer", "null"]
    assert bound_integers({"type": optional}) == {"type": optional, **ALL}


BOUNDED = {**WHOLE, **ALL}
FIRST = {"$ref": f"#/$defs/{PREFIX}0"}


def test_equal_integers_are_one_definition_but_for_alternatives() -> None:
    one_of = {"oneOf": [BOUNDED, {"type": "string"}]}
    schema = {
        "properties": {"a": {**BOUNDED, "title": "A"}, "b": one_of, "c": {"items": BOUNDED}},
        "$defs": {"d": True},
    }
    shared = {"properties": {"a": FIRST, "b": one_of, "c": {"items": FIRST}}}
    assert share_integers(schema) == {**shared, "$defs": {"d": True, f"{PREFIX}0": BOUNDED}}


@pytest.mark.parametrize("more", [{"$defs": {f"{PREFIX}7": True}}, {"$defs": 1}])
def test_schema_whose_references_would_mean_something_else_stays(more: dict[str, Any]) -> None:
    schema = {"properties": {"a": BOUNDED}, **more}
    assert share_integers(schema) == schema


DIGITS = "9" * 20


@pytest.mark.parametrize(
    "part",
    [
        WHOLE,
        {"type": ["integer", "null"], "description": "a count"},
        {"anyOf": [WHOLE, {"type": "null"}]},
        {"oneOf": [WHOLE, {"type": "string"}]},
        {"allOf": [WHOLE, {"minimum": -9}]},
        {"$ref": "#/$defs/count"},
    ],
)
def test_digits_end(text: ModelTokenizer, part: dict[str, Any]) -> None:
    inner = {"$id": "c", "type": "object", "properties": {"n": part}, "$defs": {"count": WHOLE}}
    schema = {"$id": "http://a/b", "$ref": "c", "$defs": {"inner": inner}}
    compiled = text.grammars.compile(Grammar(kind="json_schema", source=json.dumps(schema)))
    for number in (0, -7, LARGEST):
        assert follow(text, compiled.start(), f'{{"n": {number}}}') == (True, True)
    assert follow(text, compiled.start(), f'{{"n": {DIGITS}')[0] is False


def test_many_integers_compile(text: ModelTokenizer) -> None:
    fields = {f"f{number}": WHOLE for number in range(1000)}
    schema = {"type": "object", "properties": fields, "required": [*fields]}
    compiled = text.grammars.compile(Grammar(kind="json_schema", source=json.dumps(schema)))
    assert follow(text, compiled.start(), '{"f0": 5, "f1": 7, "f2": 9,') == (True, False)

"""The names that patterns of properties match, and the schemas that have properties of these names instead."""

from __future__ import annotations

import json
import random
from typing import Any

import jsonschema
import pytest

from parallax_core.api import InvalidRequest
from parallax_core.api.grammars import Grammar
from parallax_core.models.tokenizer import ModelTokenizer
from parallax_grammars.schema_names import find_names, list_names
from tests.support.grammar_walk import follow, generate
from tests.unit.tinymodel import write_model


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> ModelTokenizer:
    return ModelTokenizer(write_model(tmp_path_factory.mktemp("model")))


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("^n$", {"n"}),
        ("^(a|b)$|^c$", {"a", "b", "c"}),
        (r"^x\.[12]?$", {"x.", "x.1", "x.2"}),
        (r"^\d$", set("0123456789")),
        ('^é"$', {'é"'}),
        ("^$", {""}),
        ("n", None),
        ("^n", None),
        ("^[a-z]$", None),
        ("^(ab){1000}$", None),
    ],
)
def test_names_of_a_pattern_are_found_if_they_are_few(pattern: str, names: set[str] | None) -> None:
    found = find_names(pattern, 16)
    assert (found if found is None else set(found)) == names


@pytest.mark.parametrize("pattern", ["^(?!a)", "(", r"^a\b"])
def test_pattern_that_cannot_be_told_is_refused_by_the_name_of_its_keyword(pattern: str) -> None:
    with pytest.raises(InvalidRequest, match="patternProperties") as refused:
        find_names(pattern, 16)
    assert refused.value.param == "grammar"


LOW = {"type": "integer", "minimum": 0, "maximum": 9}
EVEN = {"enum": [2, 4, 44]}


def test_listed_property_obeys_both_schemas_and_references_into_it_hold() -> None:
    schema = {"properties": {"n": LOW, "other": True}, "patternProperties": {"^n$": EVEN, "^other$": LOW, "^x": LOW}}
    changed = {"n": {**LOW, "allOf": [EVEN]}, "other": LOW}
    assert list_names(schema) == {"properties": changed, "patternProperties": {"^x": LOW}}


def test_counted_object_keeps_a_pattern_whose_names_are_not_required() -> None:
    """llguidance counts properties only if all that are listed are required."""
    schema = {"patternProperties": {"^n$": LOW, "^m$": LOW}, "minProperties": 1, "required": ["m"]}
    assert list_names(schema) == {**schema, "properties": {"m": LOW}, "patternProperties": {"^n$": LOW}}


CLOSED = {"type": "object", "properties": {"n": LOW}, "additionalProperties": False}
ONE_OBJECT = [
    {**CLOSED, "patternProperties": {"^n$": {"type": "integer"}}, "required": ["n"]},
    {**CLOSED, "patternProperties": {"^(n)$": EVEN, "^m$": {"const": 0}}},
    {**CLOSED, "patternProperties": {"^[mn]$": {"type": "integer"}, "^m[a-z]{0,2}$": {"enum": [1, 2]}}},
    {**CLOSED, "patternProperties": {"^n$": True, "^m[a-z]{1,2}$": {"const": 1}, "^k$": False}},
    {"type": "object", "required": ["n"], "patternProperties": {"^n$": EVEN}, "additionalProperties": False},
    {"allOf": [{"type": "object", "properties": {"n": LOW}}, {"patternProperties": {"^n$": EVEN}}], **CLOSED},
    {**CLOSED, "patternProperties": {"^n$": EVEN}, "minProperties": 1, "required": ["n"]},
    {**CLOSED, "properties": {"n": {"$ref": "#/$defs/low"}}, "patternProperties": {"^n$": EVEN}, "$defs": {"low": LOW}},
]
PLACES = [
    lambda schema: schema,
    lambda schema: {"type": "array", "items": {"anyOf": [schema, {"type": "null"}]}, "maxItems": 2},
]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("schema", ONE_OBJECT)
def test_grammar_has_no_dead_end_and_its_texts_are_valid(
    text: ModelTokenizer, schema: dict[str, Any], place: Any
) -> None:
    definitions = {"$defs": schema["$defs"]} if "$defs" in schema else {}
    whole = {**place(schema), **definitions}
    compiled = text.grammars.compile(Grammar(kind="json_schema", source=json.dumps(whole)))
    for seed in range(15):
        answer = generate(text, compiled.start(), random.Random(seed))
        assert answer is not None
        jsonschema.validate(json.loads(answer), whole)


def test_property_in_two_patterns_takes_what_both_allow(text: ModelTokenizer) -> None:
    schema = {**CLOSED, "patternProperties": {"^n$": EVEN, "^(n|m)$": LOW}}
    compiled = text.grammars.compile(Grammar(kind="json_schema", source=json.dumps(schema)))
    assert [follow(text, compiled.start(), f'{{"n": {value}}}')[1] for value in (2, 4, 3, 44)] == [
        True,
        True,
        False,
        False,
    ]
    assert follow(text, compiled.start(), '{"n": 4, "m": 9}') == (True, True)

"""What a JSON schema is without the keywords that ask for nothing."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parallax_grammars.schema_keywords import FORMATS, drop_neutral, rewrite_schema


def drop(schema: Any) -> Any:
    return rewrite_schema(schema, drop_neutral)


TEXT = {"type": "string"}
NEUTRAL: list[dict[str, Any]] = [
    {"uniqueItems": False},
    {"format": "path"},
    {"format": "int64"},
    {"maxItems": None},
    {"items": None, "pattern": None},
    {"minContains": 0},
    {"minContains": 2, "maxContains": 3},
    {"not": False},
    {"if": {"const": 1}},
    {"then": {"const": 1}, "else": False},
    {"if": {"const": 1}, "then": True, "else": {}},
    {"dependentRequired": {}},
    {"dependentRequired": {"a": []}},
    {"dependentSchemas": {"a": True}},
    {"dependencies": {}},
    {"propertyNames": True},
    {"propertyNames": {"type": "string", "title": "Name"}},
    {"unevaluatedProperties": True},
    {"unevaluatedItems": {}},
]
ASSERTED: list[dict[str, Any]] = [
    {"uniqueItems": True},
    *({"format": name} for name in sorted(FORMATS)),
    {"contains": TEXT, "minContains": 0},
    {"not": {}},
    {"if": {"const": 1}, "then": False},
    {"dependentRequired": {"a": ["b"]}},
    {"dependencies": {"a": ["b"]}},
    {"propertyNames": {"pattern": "^a"}},
    {"propertyNames": {"title": "a", "type": "integer"}},
    {"unevaluatedProperties": False},
    {"minLength": 0},
    {"const": None},
    {"default": None, "enum": [None], "examples": [None]},
]
PLACES = [
    lambda schema: schema,
    lambda schema: {"properties": {"format": schema, "uniqueItems": schema}},
    lambda schema: {"items": [schema, True], "additionalProperties": schema},
    lambda schema: {"$defs": {"not": schema}, "patternProperties": {"^a": schema}},
    lambda schema: {"anyOf": [{"allOf": [schema]}, {"type": "null"}], "contains": schema},
]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("neutral", NEUTRAL)
def test_what_asks_for_nothing_is_left_out_wherever_it_stands(neutral: dict[str, Any], place: Any) -> None:
    assert drop(place({**TEXT, **neutral})) == place(TEXT)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("asserted", ASSERTED)
def test_what_asks_for_something_stays(asserted: dict[str, Any], place: Any) -> None:
    assert drop(place({**TEXT, **asserted})) == place({**TEXT, **asserted})


@pytest.mark.parametrize("keyword", ["const", "default", "enum", "example", "examples"])
def test_values_are_no_schemas(keyword: str) -> None:
    schema = {keyword: [{"format": "path", "uniqueItems": False, "title": None}]}
    assert drop(schema) == schema


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: (
        st.lists(inner)
        | st.dictionaries(
            st.sampled_from(["items", "not", "format", "if", "then", "properties", "propertyNames"]), inner
        )
    ),
)


@given(JSON)
def test_any_json_is_taken_and_nothing_is_left_to_drop(value: Any) -> None:
    once = drop(value)
    assert drop(once) == once

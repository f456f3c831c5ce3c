"""``oneOf`` where no value can match two alternatives."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field

from parallax_core.api.grammars import Grammar
from parallax_core.models.tokenizer import ModelTokenizer
from parallax_grammars.schema_choices import join_choices
from tests.support.grammar_walk import follow
from tests.unit.tinymodel import write_model


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: int


class Dog(BaseModel):
    kind: Literal["dog", "puppy"]
    name: str


class Home(BaseModel):
    pet: Annotated[Cat | Dog, Field(discriminator="kind")]


def tag(*values: object, **more: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"kind": {"enum": list(values)}}, "required": ["kind"], **more}


@pytest.mark.parametrize(
    "choices",
    [
        [{"type": "string"}, {"type": ["integer", "null"]}],
        [tag("a"), tag("b", "c"), tag("d")],
        [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}],
        [{"const": "a"}, {"enum": ["b", "c"]}],
        [tag("a", properties={"kind": {"type": "string"}}), tag("a", properties={"kind": {"type": "null"}})],
    ],
)
def test_alternatives_that_exclude_each_other_are_joined(choices: list[Any]) -> None:
    root = {"$defs": {"a": {"$ref": "#/$defs/c"}, "b": tag("b"), "c": tag("a")}}
    found = join_choices({"title": "t", "oneOf": choices, "discriminator": {"propertyName": "kind"}}, root)
    assert found == {"title": "t", "anyOf": choices}


@pytest.mark.parametrize(
    "choices",
    [
        [{"type": "integer"}, {"type": "number"}],
        [{"type": "string"}, {}],
        [{"type": "string"}, True],
        [tag("a", "b"), tag("b", "c")],
        [tag("a"), tag("b", required=[])],
        [tag(1), tag(1.0)],
        [{"$ref": "#/$defs/loop"}, {"type": "string"}],
        [{"$ref": "other"}, {"type": "string"}],
        [{"type": "string"}, {"type": "null"}, {"const": "a"}],
        "text",
    ],
)
def test_alternatives_that_one_value_may_match_stay(choices: object) -> None:
    part = {"oneOf": choices}
    assert join_choices(part, {"$defs": {"loop": {"$ref": "#/$defs/loop"}}}) == part


@pytest.mark.parametrize("place", ["#/$defs/", "pets.json#/$defs/", "https://example.org/pets.json#/$defs/", "#"])
def test_alternatives_of_a_schema_with_a_name_are_told_apart(tmp_path: Path, place: str) -> None:
    write_model(tmp_path)
    text = ModelTokenizer(tmp_path)
    named = {name: {"$anchor": name, **tag(name)} for name in ("cat", "dog")}
    inner = {"$id": "pets.json", "oneOf": [{"$ref": f"{place}{name}"} for name in named], "$defs": named}
    for schema in (
        {**inner, "$id": "https://example.org/pets.json"},
        {"$id": "https://example.org/", "allOf": [inner]},
    ):
        compiled = text.grammars.compile(Grammar(kind="json_schema", source=json.dumps(schema)))
        assert follow(text, compiled.start(), '{"kind": "dog"}') == (True, True)
        assert follow(text, compiled.start(), '{"kind": "cow"}') == (False, False)


@pytest.mark.parametrize(
    ("answer", "is_allowed"),
    [
        ('{"pet": {"kind": "cat", "lives": 9}}', True),
        ('{"pet": {"kind": "puppy", "name": "Bo"}}', True),
        ('{"pet": {"kind": "cat", "name": "Bo"}}', False),
    ],
)
def test_union_of_classes_is_followed(tmp_path: Path, answer: str, *, is_allowed: bool) -> None:
    write_model(tmp_path)
    grammar = Grammar(kind="json_schema", source=json.dumps(Home.model_json_schema()))
    text = ModelTokenizer(tmp_path)
    assert follow(text, text.grammars.compile(grammar).start(), answer) == (is_allowed, is_allowed)

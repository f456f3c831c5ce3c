"""The docstrings of fields are in the description of the API, of the classes of bodies and of answers."""

from __future__ import annotations

from typing import Any, ClassVar

import msgspec
from pydantic import BaseModel, ConfigDict, Field

from parallax_openapi.field_docs import add_field_docs, read_field_docs


class Base(BaseModel):
    """A part of a body."""

    model_config = ConfigDict(defer_build=True)

    depth: int
    """How deep
    it is."""
    width: int
    """How wide it is."""
    plain: int = 0
    constant: ClassVar[int] = 3
    """No field."""


class Reply(msgspec.Struct):
    """A part of an answer."""

    length: int
    """How long it is."""
    plain: int


class Derived(Base):
    """A part with fields of its own."""

    width: int = 4
    height: int = Field(1, alias="tall")
    """How high it is."""
    weight: int = Field(1, description="In grams.")
    """How heavy it is."""


def test_docstring_is_that_of_the_class_that_annotates_the_field_last() -> None:
    assert read_field_docs(Base) == {"depth": "How deep\nit is.", "width": "How wide it is."}
    own = {"tall": "How high it is.", "weight": "How heavy it is."}
    assert read_field_docs(Derived) == {"depth": "How deep\nit is.", **own}


def test_class_of_an_answer_has_docs() -> None:
    assert read_field_docs(Reply) == {"length": "How long it is."}


def test_class_of_a_function_has_no_docs() -> None:
    class Local(Base):
        depth: int
        """Not read."""

    assert read_field_docs(Local) == read_field_docs(Base)


def test_schema_gets_the_descriptions_it_does_not_have() -> None:
    shapes: dict[str, dict[str, Any]] = {each.__name__: each.model_json_schema() for each in (Base, Derived)}
    shapes["Other"] = {"properties": {"depth": {}}}
    add_field_docs(shapes, [Base, Derived])
    described = {name: shape.get("description") for name, shape in shapes["Derived"]["properties"].items()}
    expected = {"depth": "How deep\nit is.", "width": None, "plain": None, "tall": "How high it is."}
    assert described == {**expected, "weight": "In grams."}
    assert shapes["Base"]["properties"]["width"]["description"] == "How wide it is."
    assert shapes["Other"] == {"properties": {"depth": {}}}

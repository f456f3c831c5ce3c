"""The API's description has the schemas of bodies and answers, as they are read and sent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from parallax_core.server.fields import Strict
from parallax_core.server.response_models import ResponseModel
from parallax_openapi.schemas import REFERENCE, add_schemas


class SchemaPart(ResponseModel, tag_field="type", tag="part"):
    """A part of an answer."""

    mark: bool | UnsetType = UNSET
    """Left out at times."""


class SchemaReply(ResponseModel, kw_only=True):
    """An answer."""

    object: Literal["reply"] = "reply"
    parts: list[SchemaPart]
    reason: Literal["b", "a"] | None = None
    """Why it ended."""


class SchemaValue(msgspec.Struct, frozen=True):
    """A value that was not made for answers."""

    text: str = ""
    """In words."""


@dataclass(frozen=True)
class SchemaPlace:
    """Another."""

    row: int = 0


class SchemaHistory(ResponseModel):
    """An answer with such values."""

    values: list[SchemaValue]
    place: SchemaPlace


class SchemaBody(Strict):
    """A body."""

    count: int = 1
    """How many."""


def describe(*models: type[Any]) -> dict[str, Any]:
    document: dict[str, Any] = {"components": {"schemas": {}}, "paths": {}}
    document["paths"] = {model.__name__: {"$ref": REFERENCE.format(name=model.__name__)} for model in models}
    add_schemas(document)
    found: dict[str, Any] = document["components"]["schemas"]
    return found


def test_fields_of_an_answer_are_required_unless_they_are_left_out() -> None:
    found = describe(SchemaReply)
    assert found["SchemaReply"]["required"] == ["object", "parts", "reason"]
    assert found["SchemaPart"]["required"] == ["type"]
    assert found["SchemaPart"]["additionalProperties"] is False


def test_constants_of_an_answer_have_types_and_no_defaults() -> None:
    found = describe(SchemaReply)["SchemaReply"]["properties"]
    assert found["object"] == {"const": "reply", "type": "string"}
    reason = {"anyOf": [{"enum": ["a", "b"], "type": "string"}, {"type": "null"}]}
    assert found["reason"] == {**reason, "description": "Why it ended."}


def test_answer_may_have_values_of_other_kinds() -> None:
    found = describe(SchemaHistory)
    assert found["SchemaValue"]["required"] == ["text"]
    assert found["SchemaValue"]["properties"] == {"text": {"type": "string", "description": "In words."}}
    assert found["SchemaPlace"]["properties"].keys() == {"row"}


def test_body_is_described_as_it_is_read() -> None:
    assert describe(SchemaBody)["SchemaBody"]["properties"]["count"]["default"] == 1


def test_description_refers_to_nothing_that_it_lacks_and_keeps_what_it_has() -> None:
    document: dict[str, Any] = {"components": {"schemas": {"SchemaBody": {}}}, "paths": {"a": {"$ref": "#/x/Other"}}}
    add_schemas(document, [SchemaBody, SchemaPart])
    assert document["components"]["schemas"].keys() == {"SchemaBody", "SchemaPart"}
    assert document["components"]["schemas"]["SchemaBody"] == {}

"""Adds the schemas of bodies and answers to the API's description, from the classes themselves."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from parallax_core.api.bodies import ResponseModel, Strict
from parallax_openapi.field_docs import add_field_docs

REFERENCE = "#/components/schemas/{name}"
REFERRED = re.compile(r'"#/components/schemas/(\w+)"')
BASES: tuple[type[Any], ...] = (msgspec.Struct, Strict, ResponseModel)
"""What bodies, answers and values in them derive from; a class of a later one goes before others of its name."""
TYPES = {str: "string", bool: "boolean"}
"""The types of constants, as JSON schemas call them."""


def add_schemas(document: dict[str, Any], others: Iterable[type[Any]] = ()) -> None:
    """Add the schemas that an OpenAPI document refers to and lacks, and those of ``others``."""
    shapes = document["components"]["schemas"]
    known = {each.__name__: each for base in BASES for each in _list_classes(base)}
    known |= {each.__name__: each for each in others}
    names = {*REFERRED.findall(json.dumps(document["paths"])), *(each.__name__ for each in others)} - shapes.keys()
    missing = [known[name] for name in sorted(names & known.keys())]
    bodies = [(model, "validation") for model in missing if issubclass(model, BaseModel)]
    replies = [model for model in missing if issubclass(model, msgspec.Struct)]
    _, read = models_json_schema(bodies, ref_template=REFERENCE.format(name="{model}"))  # type: ignore[arg-type]
    _, written = msgspec.json.schema_components(replies, ref_template=REFERENCE)
    for name, shape in written.items():
        if issubclass(model := known.get(name, object), msgspec.Struct):  # an answer may have values of other kinds
            _complete(shape, model)
    added = {**read.get("$defs", {}), **written}
    add_field_docs(added, [known[name] for name in added if name in known])
    shapes |= added


def _list_classes(base: type[Any]) -> Iterator[type[Any]]:
    yield base
    for each in base.__subclasses__():
        yield from _list_classes(each)


def _complete(shape: dict[str, Any], model: type[msgspec.Struct]) -> None:
    """Describe the fields of an answer as they are sent: with their values by default, unless they are left out."""
    left_out = {each.encode_name for each in msgspec.structs.fields(model) if each.default is msgspec.UNSET}
    shape["required"] = [name for name in shape["properties"] if name not in left_out]
    for each in shape["properties"].values():
        each.pop("default", None)
    _add_types([*shape["properties"].values()])


def _add_types(part: Any) -> None:  # noqa: ANN401 -- a part of a JSON schema
    """Give constants their type, which generators of clients look for."""
    if isinstance(part, dict) and "enum" in part:
        values = part.pop("enum")
        part |= {"const": values[0]} if len(values) == 1 else {"enum": values}
        part["type"] = TYPES[type(values[0])]
    elif isinstance(part, dict | list):
        for each in part.values() if isinstance(part, dict) else part:
            _add_types(each)

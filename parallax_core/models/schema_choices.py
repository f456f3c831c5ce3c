"""Reads ``oneOf`` as ``anyOf`` where no value can match two of its schemas, which llguidance sees without references.

Libraries write the union of several classes so, each with a field that tells them apart.
"""

from __future__ import annotations

import json
from itertools import combinations
from typing import Any

from parallax_core.models.schema_keywords import JsonSchema

MOST_STEPS = 16
"""The most references and properties that are followed to tell two schemas apart."""


def join_choices(part: JsonSchema, root: JsonSchema) -> JsonSchema:
    """Return a part of the schema ``root`` with ``anyOf`` for ``oneOf``, if its alternatives exclude each other."""
    choices = part.get("oneOf")
    if "anyOf" in part or not isinstance(choices, list):
        return part
    if not all(_are_apart(one, other, root, MOST_STEPS) for one, other in combinations(choices, 2)):
        return part
    joined = {"anyOf" if name == "oneOf" else name: value for name, value in part.items()}
    joined.pop("discriminator", None)  # it names the field that tells them apart, and asks for nothing
    return joined


def _are_apart(one: Any, other: Any, root: JsonSchema, steps: int) -> bool:  # noqa: ANN401 -- any JSON
    """Return whether it is certain that no value matches both schemas."""
    one, other = _resolve(one, root, steps), _resolve(other, root, steps)
    if not (steps and isinstance(one, dict) and isinstance(other, dict)):
        return False
    types = _list_types(one), _list_types(other)
    values = _list_values(one), _list_values(other)
    if any(pair[0] and pair[1] and pair[0].isdisjoint(pair[1]) for pair in (types, values)):
        return True
    fields = [_list_required(each) for each in (one, other)]
    return types == ({"object"}, {"object"}) and any(
        _are_apart(fields[0][name], fields[1][name], root, steps - 1) for name in fields[0].keys() & fields[1].keys()
    )


def _resolve(schema: Any, root: JsonSchema, steps: int) -> Any:  # noqa: ANN401 -- any JSON
    """Follow the references of a schema within ``root``."""
    for _ in range(steps):
        if not (isinstance(schema, dict) and isinstance(path := schema.get("$ref"), str)):
            return schema
        found: Any = root
        for key in path.removeprefix("#/").split("/") if path.startswith("#/") else [""]:
            found = found.get(key) if isinstance(found, dict) else None
        schema = found
    return None


def _list_types(schema: JsonSchema) -> set[str]:
    """Return the types of a schema; ``integer`` is a ``number``. Empty: any."""
    given = schema.get("type")
    names = [given] if isinstance(given, str) else given if isinstance(given, list) else []
    return {"number" if name == "integer" else name for name in names if isinstance(name, str)}


def _list_values(schema: JsonSchema) -> set[str]:
    """Return the values of ``const`` or ``enum``, as JSON. Empty: any, or some that may be equal and look different."""
    values = [schema["const"]] if "const" in schema else schema.get("enum", [])
    simple = isinstance(values, list) and all(isinstance(each, str | bool) for each in values)
    return set(map(json.dumps, values)) if simple else set()


def _list_required(schema: JsonSchema) -> dict[str, Any]:
    """Return the schemas of the fields that an object must have."""
    fields, names = schema.get("properties"), schema.get("required")
    if not (isinstance(fields, dict) and isinstance(names, list)):
        return {}
    return {name: fields[name] for name in names if isinstance(name, str) and name in fields}

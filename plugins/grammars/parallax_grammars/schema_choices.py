"""Reads ``oneOf`` as ``anyOf`` where no value can match two of its schemas.

Libraries write the union of several classes so, each with a field that tells them apart.
"""

from __future__ import annotations

import json
from itertools import combinations
from typing import Any

from parallax_grammar_tools.schema_refs import JsonSchema, follow_references


def join_choices(part: JsonSchema, root: JsonSchema) -> JsonSchema:
    """Return a part of the schema ``root`` with ``anyOf`` for ``oneOf``, if its alternatives exclude each other."""
    choices = part.get("oneOf")
    if "anyOf" in part or not isinstance(choices, list):
        return part
    if not all(_are_apart(one, other, root) for one, other in combinations(choices, 2)):
        return part
    joined = {"anyOf" if name == "oneOf" else name: value for name, value in part.items()}
    joined.pop("discriminator", None)  # it names the field that tells them apart, and asks for nothing
    return joined


def _are_apart(one: Any, other: Any, root: JsonSchema) -> bool:  # noqa: ANN401 -- any JSON
    """Return whether it is certain that no value matches both schemas: they differ, or a field that both require."""
    one, other = follow_references(one, root), follow_references(other, root)
    if _differ(one, other):
        return True
    fields, others = _list_required(one), _list_required(other)
    return any(
        _differ(follow_references(fields[name], root), follow_references(others[name], root))
        for name in fields.keys() & others.keys()
    )


def _differ(one: Any, other: Any) -> bool:  # noqa: ANN401 -- any JSON
    """Return whether two schemas have no type, or no value, in common."""
    if not (isinstance(one, dict) and isinstance(other, dict)):
        return False
    pairs = (_list_types(one), _list_types(other)), (_list_values(one), _list_values(other))
    return any(mine and theirs and mine.isdisjoint(theirs) for mine, theirs in pairs)


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


def _list_required(schema: Any) -> dict[str, Any]:  # noqa: ANN401 -- any JSON
    """Return the schemas of the fields that a value must have, which has to be an object."""
    if not isinstance(schema, dict) or _list_types(schema) != {"object"}:
        return {}
    fields, names = schema.get("properties"), schema.get("required")
    if not (isinstance(fields, dict) and isinstance(names, list)):
        return {}
    return {name: fields[name] for name in names if isinstance(name, str) and name in fields}

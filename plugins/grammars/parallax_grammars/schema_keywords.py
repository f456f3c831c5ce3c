"""Removes keywords without effect from a JSON schema, so that it is not refused for them.

The keywords are those of JSON Schema 2020-12 (https://json-schema.org/draft/2020-12/json-schema-validation), and of
draft 7 where their names differ. What asserts something stays, and is refused by name if it cannot be held.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from parallax_grammar_tools.schema_refs import IN_OBJECT, VALUES, JsonSchema

FORMATS = frozenset(
    {"date", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "time", "unknown", "uri", "uuid"}
)
"""The formats that answers are held to. Any other is an annotation, as the standard has it."""
NOTES = frozenset({"$comment", "deprecated", "description", "examples", "title"})
"""Keywords that say something of a value and ask for nothing."""
PAIRS = {"contains": ("maxContains", "minContains"), "if": ("else", "then")}
"""Keywords without which others ask for nothing."""


def _is_any(schema: Any) -> bool:  # noqa: ANN401 -- any JSON
    return schema is True or (isinstance(schema, dict) and set(schema) <= NOTES)


def _is_any_name(schema: Any) -> bool:  # noqa: ANN401 -- any JSON
    return _is_any(schema) or (
        isinstance(schema, dict) and set(schema) <= {*NOTES, "type"} and schema["type"] == "string"
    )


def _is_empty(value: Any) -> bool:  # noqa: ANN401 -- any JSON
    return isinstance(value, dict) and not any(value.values())


NEUTRAL: Mapping[str, Callable[[Any], bool]] = {
    "dependencies": _is_empty,
    "dependentRequired": _is_empty,
    "dependentSchemas": lambda value: isinstance(value, dict) and all(map(_is_any, value.values())),
    "format": lambda value: isinstance(value, str) and value not in FORMATS,
    "not": lambda value: value is False,
    "propertyNames": _is_any_name,
    "unevaluatedItems": _is_any,
    "unevaluatedProperties": _is_any,
    "uniqueItems": lambda value: value is False,
}
"""By keyword: which of its values ask for nothing."""


def rewrite_schema(
    schema: Any,  # noqa: ANN401 -- any JSON; what is no schema is left for the compiler to refuse
    change: Callable[[JsonSchema], JsonSchema],
    kept: Collection[str] = VALUES,
) -> Any:  # noqa: ANN401 -- as above
    """Return a schema whose parts, and then itself, were given to ``change``; keywords in ``kept`` stay as they are."""
    if isinstance(schema, list):
        return [rewrite_schema(each, change, kept) for each in schema]
    if not isinstance(schema, dict):
        return schema
    return change(
        {name: value if name in kept else _rewrite_within(name, value, change, kept) for name, value in schema.items()}
    )


def drop_neutral(schema: JsonSchema) -> JsonSchema:
    """Return a schema without its own keywords that ask for nothing: null, a neutral value, an unknown format."""
    kept = {name: value for name, value in schema.items() if not _is_neutral(name, value)}
    if _is_any(kept.get("then", True)) and _is_any(kept.get("else", True)):
        kept.pop("if", None)
    unused = {name for needed, names in PAIRS.items() if needed not in kept for name in names}
    return {name: value for name, value in kept.items() if name not in unused}


def _rewrite_within(
    name: str,
    value: Any,  # noqa: ANN401 -- any JSON
    change: Callable[[JsonSchema], JsonSchema],
    kept: Collection[str],
) -> Any:  # noqa: ANN401 -- any JSON
    if name in IN_OBJECT and isinstance(value, dict):
        return {each: rewrite_schema(part, change, kept) for each, part in value.items()}
    return rewrite_schema(value, change, kept) if isinstance(value, dict | list) else value


def _is_neutral(name: str, value: Any) -> bool:  # noqa: ANN401 -- any JSON
    if value is None:
        return name not in VALUES
    return name in NEUTRAL and NEUTRAL[name](value)

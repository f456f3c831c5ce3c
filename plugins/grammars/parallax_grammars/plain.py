"""Tells grammars that are sure to compile, and quickly, from those that have to be tried out first."""

from __future__ import annotations

import json
from typing import Any

from parallax_core.api.grammars import Grammar

MOST_TEXT = 4096
"""The longest source of a plain grammar."""
MOST_PARTS = 64
"""The most schemas in a plain one, itself included. Unions of this number take 10 ms, the slowest of plain ones."""
MOST_DEPTH = 8
NOTES = {"title": str, "description": str}
KEYWORDS = {
    "object": {"type", "properties", "required", "additionalProperties"},
    "array": {"type", "items"},
    **{kind: {"type"} for kind in ("string", "integer", "number", "boolean", "null")},
}
"""By type: the keywords of a plain schema. Others, such as a pattern or a bound, may take any time to compile."""


def is_plain(grammar: Grammar) -> bool:
    """Return whether a grammar compiles for sure, within 50 ms of a processor, and so need not be tried out before."""
    if grammar.after or grammar.whitespace or len(grammar.source) > MOST_TEXT:
        return False
    match grammar.kind:
        case "json_object":
            return not grammar.source
        case "choice":
            return _is_choice(json.loads(grammar.source))
        case "json_schema":
            return _is_schema(grammar.source)
    return False


def _is_schema(source: str) -> bool:
    try:
        count = _count_parts(json.loads(source), MOST_DEPTH)
    except (ValueError, RecursionError):
        return False
    return count is not None and count <= MOST_PARTS


def _count_parts(schema: Any, depth: int) -> int | None:  # noqa: ANN401 -- any JSON
    """Return the number of schemas in one; None: it is not plain, or deeper than ``depth``."""
    if not isinstance(schema, dict) or not depth:
        return None
    schema = {name: value for name, value in schema.items() if not isinstance(value, NOTES.get(name, ()))}
    if schema.keys() == {"anyOf"}:
        return _sum_parts(schema["anyOf"], depth) if isinstance(schema["anyOf"], list) and schema["anyOf"] else None
    kind = schema.get("type")
    if "enum" in schema and schema.keys() <= {"type", "enum"} and kind in {None, "string"}:
        return len(schema["enum"]) if _is_choice(schema["enum"]) else None
    if not isinstance(kind, str) or not schema.keys() <= KEYWORDS.get(kind, set()):
        return None
    return _count_object(schema, depth) if kind == "object" else _sum_parts([*_list_items(schema)], depth)


def _count_object(schema: dict[str, Any], depth: int) -> int | None:
    properties, required = schema.get("properties", {}), schema.get("required", [])
    if not isinstance(properties, dict) or not isinstance(schema.get("additionalProperties", True), bool):
        return None
    is_met = isinstance(required, list) and all(isinstance(name, str) and name in properties for name in required)
    return _sum_parts([*properties.values()], depth) if is_met and len({*required}) == len(required) else None


def _list_items(schema: dict[str, Any]) -> list[Any]:
    return [schema["items"]] if "items" in schema else []


def _sum_parts(schemas: list[Any], depth: int) -> int | None:
    """Return the number of schemas in several parts of one, and that one."""
    found = [_count_parts(each, depth - 1) for each in schemas]
    return 1 + sum(each or 0 for each in found) if None not in found else None


def _is_choice(texts: Any) -> bool:  # noqa: ANN401 -- any JSON
    """Return whether this is a list of different texts, and not empty."""
    is_list = isinstance(texts, list) and 0 < len(texts) <= MOST_PARTS
    return is_list and all(isinstance(text, str) and text for text in texts) and len({*texts}) == len(texts)

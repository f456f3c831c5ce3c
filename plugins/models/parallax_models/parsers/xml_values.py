"""Writes the arguments of a call as JSON from values that a model wrote as plain text."""

from __future__ import annotations

import ast
import json
from collections.abc import Callable, Mapping
from typing import Any

from parallax_core.api import JsonScan
from parallax_grammar_tools.schema_refs import JsonSchema, follow_references

MOST_PYTHON = 65536
"""The most characters of a list or a table that is read as Python, which some templates write."""
KINDS: Mapping[str, tuple[type, ...]] = {
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
    "array": (list,),
    "object": (dict,),
    "string": (str,),
}


MOST_DEPTH = 8
"""The most unions of types within each other."""


class ArgumentWriter:
    """Writes one object, piece by piece.

    A value is a string if its schema says so, or the tool has no such argument; otherwise it is JSON, if it can be.
    """

    def __init__(self, schema: JsonSchema, write: Callable[[str], None]) -> None:
        self._schema = schema
        self._write = write
        self._separator = "{"
        self._kinds: frozenset[str] = frozenset()
        self._parts: list[str] = []
        self._scan = JsonScan()

    def begin_value(self, key: str, kinds: frozenset[str] | None = None) -> None:
        """Begin the value of ``key``, of one of these types; None: of those in its schema."""
        self._kinds = list_kinds(find_property(self._schema, key), self._schema) if kinds is None else kinds
        self._parts, self._scan = [], JsonScan()
        begun = '"' if self._is_string else ""
        self._write(f"{self._separator}{json.dumps(key, ensure_ascii=False)}: {begun}")
        self._separator = ", "

    def add(self, text: str) -> None:
        """Add text to the value."""
        if self._is_string:
            self._write(json.dumps(text, ensure_ascii=False)[1:-1])
        else:
            self._parts.append(text)
            self._scan.find_end(text, 0)

    @property
    def is_in_json_string(self) -> bool:
        """Whether the value so far ends within a string of an object or a list, to which a mark would belong."""
        return self._scan.is_in_string and "".join(self._parts).lstrip()[:1] in {"{", "["}

    def end_value(self) -> None:
        """End the value."""
        self._write('"' if self._is_string else write_value("".join(self._parts), self._kinds))

    def end(self) -> None:
        """End the object."""
        self._write("{}" if self._separator == "{" else "}")

    @property
    def _is_string(self) -> bool:
        return self._kinds == {"string"}


def find_property(schema: JsonSchema, key: str) -> Any:  # noqa: ANN401 -- any JSON
    """Return the schema of an argument."""
    whole = follow_references(schema, schema)
    fields = whole.get("properties") if isinstance(whole, dict) else None
    if isinstance(fields, dict) and key in fields:
        return fields[key]
    more = whole.get("additionalProperties") if isinstance(whole, dict) else None
    return more if isinstance(more, dict) and more else {"type": "string"}


def list_kinds(schema: object, root: JsonSchema, depth: int = MOST_DEPTH) -> frozenset[str]:
    """Return the types that a part of the schema ``root`` allows; empty: not stated."""
    schema = follow_references(schema, root)
    if not isinstance(schema, dict) or not depth:
        return frozenset()
    kinds = schema.get("type")
    if isinstance(kinds, str):
        return frozenset({kinds})
    if isinstance(kinds, list):
        return frozenset(kind for kind in kinds if isinstance(kind, str))
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    if isinstance(values, list):
        return frozenset().union(*map(find_kinds, values))
    if variants := _list(schema.get("anyOf")) or _list(schema.get("oneOf")):
        found = [list_kinds(variant, root, depth - 1) for variant in variants[:64]]
        return frozenset().union(*found) if all(found) else frozenset()
    return frozenset().union(*(list_kinds(part, root, depth - 1) for part in _list(schema.get("allOf"))[:64]))


def find_kinds(value: object) -> frozenset[str]:
    """Return the narrowest type of a value."""
    if isinstance(value, bool):
        return frozenset({"boolean"})
    return frozenset([next((kind for kind, types in KINDS.items() if isinstance(value, types)), "string")])


def write_value(text: str, kinds: frozenset[str]) -> str:
    """Return a value as JSON: as what it looks like if ``kinds`` allow that, else as a string."""
    written = text.strip()
    try:
        value = json.loads(written, parse_constant=_refuse)
    except (ValueError, RecursionError):
        written, value = _read_python(written)
    if not written or ("string" in kinds and not _is_any(value, kinds)):
        return json.dumps(text, ensure_ascii=False)
    return written


def _read_python(text: str) -> tuple[str, object]:
    """Return a literal, list or table of Python as JSON, and its value; an empty text if it is something else."""
    if text not in {"True", "False", "None"} and (text[:1] not in {"[", "{"} or len(text) > MOST_PYTHON):
        return "", None
    try:
        value = ast.literal_eval(text)
        return json.dumps(value, ensure_ascii=False, allow_nan=False), value
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        return "", None


def _is_any(value: object, kinds: frozenset[str]) -> bool:
    return any(
        isinstance(value, KINDS.get(kind, ())) and (kind == "boolean" or not isinstance(value, bool)) for kind in kinds
    )


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _refuse(name: str) -> None:
    raise ValueError(name)

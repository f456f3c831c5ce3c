"""Writes the arguments of a call as JSON from values that a model wrote as plain text."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

LITERALS = {"True": True, "False": False, "None": None}
"""Python's spelling of JSON's literals, which some models write."""
KINDS: Mapping[str, tuple[type, ...]] = {
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
    "array": (list,),
    "object": (dict,),
    "string": (str,),
}


class ArgumentWriter:
    """Writes one object, piece by piece.

    A value is a string if its schema says so, or the tool has no such argument; otherwise it is JSON, if it can be.
    """

    def __init__(self, schema: Mapping[str, Any], write: Callable[[str], None]) -> None:
        properties = schema.get("properties")
        self._properties: Mapping[str, Any] = properties if isinstance(properties, dict) else {}
        self._write = write
        self._separator = "{"
        self._kinds: frozenset[str] = frozenset()
        self._parts: list[str] = []
        self._half = ""

    def begin_value(self, key: str) -> None:
        """Begin the value of ``key``."""
        self._kinds = list_kinds(self._properties.get(key, {"type": "string"}))
        self._parts = []
        begun = '"' if self._is_string else ""
        self._write(f"{self._separator}{json.dumps(key, ensure_ascii=False)}: {begun}")
        self._separator = ", "

    def add(self, text: str) -> None:
        """Add text to the value."""
        if self._is_string:
            self._write(json.dumps(text, ensure_ascii=False)[1:-1])
        else:
            self._parts.append(text)

    def end_value(self) -> None:
        """End the value."""
        self._write('"' if self._is_string else write_value("".join(self._parts), self._kinds))

    def end(self) -> None:
        """End the object."""
        self._write("{}" if self._separator == "{" else "}")

    @property
    def _is_string(self) -> bool:
        return self._kinds == {"string"}


def list_kinds(schema: object) -> frozenset[str]:
    """Return the types that a schema allows; empty: not stated."""
    if not isinstance(schema, dict):
        return frozenset()
    kinds = schema.get("type")
    if isinstance(kinds, str):
        return frozenset({kinds})
    if isinstance(kinds, list):
        return frozenset(kind for kind in kinds if isinstance(kind, str))
    if isinstance(values := schema.get("enum"), list):
        return frozenset({"string"}) if all(isinstance(value, str) for value in values) else frozenset()
    variants = [*_list(schema.get("anyOf")), *_list(schema.get("oneOf"))]
    found = [list_kinds(variant) for variant in variants[:64]]
    return frozenset().union(*found) if found and all(found) else frozenset()


def write_value(text: str, kinds: frozenset[str]) -> str:
    """Return a value as JSON: as what it looks like if ``kinds`` allow that, else as a string."""
    written = text.strip()
    try:
        value = LITERALS[written] if written in LITERALS else json.loads(written, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return json.dumps(text, ensure_ascii=False)
    if "string" in kinds and not _is_any(value, kinds):
        return json.dumps(text, ensure_ascii=False)
    return json.dumps(value) if written in LITERALS else written


def _is_any(value: object, kinds: frozenset[str]) -> bool:
    return any(
        isinstance(value, KINDS.get(kind, ())) and (kind == "boolean" or not isinstance(value, bool)) for kind in kinds
    )


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _refuse(name: str) -> None:
    raise ValueError(name)

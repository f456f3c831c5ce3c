"""Follows and rewrites the references of JSON schemas.

A reference is relative to the nearest ``$id`` above it (https://json-schema.org/draft/2020-12/json-schema-core, 8.2).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Any
from urllib.parse import quote, unquote, urldefrag, urljoin

JsonSchema = dict[str, Any]
"""An object that is a JSON schema, or a part of one."""
VALUES = frozenset({"const", "default", "enum", "example", "examples"})
"""Keywords whose values are no schemas."""
IN_OBJECT = frozenset({"$defs", "definitions", "dependentSchemas", "patternProperties", "properties"})
"""Keywords with an object of schemas."""
NAMES = ("$id", "$anchor")
"""Keywords that name a schema for references."""
UNQUOTED = "/~!$&'()*+,;=:@?"
"""Characters that stand for themselves in a reference."""
MOST_STEPS = 16
"""The most references that lead to a schema."""

Rewrite = Callable[[str, str], str | None]
"""Returns the reference to write for one, given the base of its own; None: it stays."""


def localize_references(schema: JsonSchema) -> JsonSchema:
    """Return a whole schema with references as JSON pointers from its root, and without names of parts.

    Characters that a URI has only in quoted form are quoted. A reference to what is not in the schema stays as it is.
    """
    places = {"": "", **dict(_list_names(schema, "", ""))}

    def find(reference: str, base: str) -> str | None:
        address, fragment = urldefrag(_join(base, reference))
        name = f"{address}#{fragment}" if fragment and not fragment.startswith("/") else address
        if name not in places:
            return None
        rest = unquote(fragment) if name == address else ""
        return "#" + quote(places[name] + rest, UNQUOTED)

    found: JsonSchema = _rewrite(schema, "", find, NAMES)
    return found


def move_references(schema: JsonSchema, place: str) -> JsonSchema:
    """Return a schema whose local references hold where it is a part of another one, at the pointer ``place``."""

    def move(reference: str, _: str) -> str | None:
        return place + reference[1:] if reference.startswith("#") else None

    found: JsonSchema = _rewrite(schema, "", move)
    return found


def follow_references(schema: Any, root: JsonSchema) -> Any:  # noqa: ANN401 -- any JSON
    """Return what the local references of a part of the schema ``root`` lead to; None: nothing."""
    for _ in range(MOST_STEPS):
        if not (isinstance(schema, dict) and isinstance(reference := schema.get("$ref"), str)):
            return schema
        schema = _find(root, unquote(reference[1:])) if reference.startswith("#") else None
    return None


def _find(root: Any, pointer: str) -> Any:  # noqa: ANN401 -- any JSON
    """Return the part of ``root`` at a JSON pointer, or None."""
    if pointer and not pointer.startswith("/"):
        return None
    for key in pointer.split("/")[1:]:
        if isinstance(root, list) and key.isdecimal() and int(key) < len(root):
            root = root[int(key)]
        else:
            root = root.get(key.replace("~1", "/").replace("~0", "~")) if isinstance(root, dict) else None
    return root


def _join(base: str, reference: str) -> str:
    return urldefrag(base).url + reference if reference.startswith("#") else urljoin(base, reference)


def _list_names(part: Any, base: str, pointer: str) -> Iterator[tuple[str, str]]:  # noqa: ANN401 -- any JSON
    """Yield the whole names of the parts of a schema, and where they are."""
    if isinstance(part, dict):
        own, anchor = (part.get(name) for name in NAMES)
        if isinstance(own, str):
            name = _join(base, own)
            yield name, pointer
            base = base if own.startswith("#") else name  # an anchor, in draft 7
        if isinstance(anchor, str):
            yield _join(base, f"#{anchor}"), pointer
    for key, child in _list_parts(part):
        yield from _list_names(child, base, f"{pointer}/{key}")


def _list_parts(part: Any) -> Iterator[tuple[str, Any]]:  # noqa: ANN401 -- any JSON
    """Yield the parts of a schema that may be schemas, each after its place in it."""
    if isinstance(part, list):
        yield from ((str(number), each) for number, each in enumerate(part))
    elif isinstance(part, dict):
        for name, value in part.items():
            if name in IN_OBJECT and isinstance(value, dict):
                yield from ((f"{_quote(name)}/{_quote(key)}", child) for key, child in value.items())
            elif name not in VALUES:
                yield _quote(name), value


def _quote(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")


def _rewrite(part: Any, base: str, change: Rewrite, dropped: Collection[str] = ()) -> Any:  # noqa: ANN401 -- any JSON
    """Return a part of a schema, whose base is ``base``, with other references, and without the names ``dropped``."""
    if isinstance(part, list):
        return [_rewrite(each, base, change, dropped) for each in part]
    if not isinstance(part, dict):
        return part
    own = part.get("$id")
    if isinstance(own, str) and not own.startswith("#"):
        base = _join(base, own)
    kept = {name: value for name, value in part.items() if name not in dropped or not isinstance(value, str)}
    return {name: _rewrite_within(name, value, base, change, dropped) for name, value in kept.items()}


def _rewrite_within(name: str, value: Any, base: str, change: Rewrite, dropped: Collection[str]) -> Any:  # noqa: ANN401
    if name == "$ref" and isinstance(value, str):
        return change(value, base) or value
    if name in IN_OBJECT and isinstance(value, dict):
        return {key: _rewrite(each, base, change, dropped) for key, each in value.items()}
    return value if name in VALUES else _rewrite(value, base, change, dropped)

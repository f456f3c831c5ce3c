"""Takes the schema of a value apart into the alternatives that it is a union of."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import combinations
from typing import Any

from parallax_core.api import InvalidRequest
from parallax_grammar_tools.schema_refs import JsonSchema, follow_references
from parallax_models.parsers.xml_values import MOST_DEPTH, list_kinds

NUMERIC = frozenset({"exclusiveMaximum", "exclusiveMinimum", "maximum", "minimum", "multipleOf"})
TYPED: Mapping[str, frozenset[str]] = {
    "string": frozenset({"format", "maxLength", "minLength", "pattern"}),
    "integer": NUMERIC,
    "number": NUMERIC,
    "array": frozenset(
        {"additionalItems", "contains", "items", "maxContains", "maxItems", "minContains", "minItems", "prefixItems"}
        | {"unevaluatedItems", "uniqueItems"}
    ),
    "object": frozenset(
        {"additionalProperties", "dependencies", "dependentRequired", "dependentSchemas", "maxProperties"}
        | {"minProperties", "patternProperties", "properties", "propertyNames", "required", "unevaluatedProperties"}
    ),
}
"""The keywords that ask something of values of one type."""
CHOSEN = frozenset({"const", "enum"})
UNTYPED = CHOSEN | {
    "$dynamicRef",
    "$recursiveRef",
    "$ref",
    "allOf",
    "anyOf",
    "else",
    "if",
    "not",
    "oneOf",
    "then",
    "type",
}
ASSERTING = UNTYPED.union(*TYPED.values())
"""The keywords that ask for something; all others are notes."""


def list_leaves(part: Any, root: JsonSchema, depth: int = MOST_DEPTH) -> Iterator[JsonSchema]:  # noqa: ANN401 -- any JSON
    """Yield the alternatives of a part of the schema ``root``, each without references of its own.

    An alternative that no union or list of types is left of has one type, or none.

    Raises:
        InvalidRequest: if it cannot be taken apart.
    """
    if part is False:
        return
    whole = _join_parts(part, root, depth)
    union = next((name for name in ("anyOf", "oneOf") if isinstance(whole.get(name), list)), "")
    if depth and union and not (whole.keys() & ASSERTING - {union}) and _may_split(whole, union, root):
        for each in whole[union]:
            yield from list_leaves(each, root, depth - 1)
    elif isinstance(kinds := whole.get("type"), list) and CHOSEN.isdisjoint(whole):
        for kind in kinds:
            yield _keep_typed(whole, kind)
    else:
        yield _keep_typed(whole, whole.get("type"))


def _may_split(whole: JsonSchema, union: str, root: JsonSchema) -> bool:
    """Return whether no value matches two alternatives, if that is asked for."""
    kinds = [list_kinds(each, root) for each in whole[union]]
    return union == "anyOf" or all(one and other and not one & other for one, other in combinations(kinds, 2))


def _keep_typed(leaf: JsonSchema, kind: Any) -> JsonSchema:  # noqa: ANN401 -- any JSON
    """Return a leaf of one type without the keywords of others."""
    if not isinstance(kind, str):
        return leaf
    kept = UNTYPED | TYPED.get(kind, frozenset())
    return {**{name: value for name, value in leaf.items() if name in kept or name not in ASSERTING}, "type": kind}


def _join_parts(part: Any, root: JsonSchema, depth: int) -> JsonSchema:  # noqa: ANN401 -- any JSON
    """Return a schema joined with what it refers to, and with the parts of ``allOf``."""
    if part is True:
        return {}
    if not isinstance(part, dict):
        raise InvalidRequest("a reference in it leads nowhere, or to something that is no schema")
    whole = {name: value for name, value in part.items() if name not in {"$ref", "allOf"}}
    others = [follow_references({"$ref": part["$ref"]}, root)] if "$ref" in part else []
    others += part["allOf"] if isinstance(part.get("allOf"), list) else []
    for other in others:
        if not depth:
            raise InvalidRequest("its schema is too deep")
        joined = _join_parts(other, root, depth - 1)
        both = whole.keys() & joined.keys() & ASSERTING
        if clash := sorted(name for name in both if whole[name] != joined[name]):
            raise InvalidRequest(f"'{clash[0]}' twice in one schema cannot be held")
        whole = {**joined, **whole}
    return whole

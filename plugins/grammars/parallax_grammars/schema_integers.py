"""Bounds integers by 64 bits, so that a model cannot write digits for ever."""

from __future__ import annotations

import json
from typing import Any

from parallax_grammar_tools.schema_refs import VALUES, JsonSchema
from parallax_grammars.schema_keywords import NOTES, rewrite_schema

SMALLEST, LARGEST = -(2**63) + 1024, 2**63 - 1
"""The bounds; llguidance holds the bounds of a schema as double precision and takes none below the first."""
BOUNDS = (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum"))
CHOSEN = frozenset({"const", "enum"})
"""Keywords beside which there is nothing to bound."""
UNBOUND = NOTES | VALUES - CHOSEN
"""Keywords that do not say what an integer may be."""
SHARED = frozenset({"type", "multipleOf", *BOUNDS[0], *BOUNDS[1]})
"""The keywords of an integer that is written once for all its places."""
PREFIX = "bounded-integer-"
"""The beginning of the names of its definitions."""


def bound_integers(schema: JsonSchema) -> JsonSchema:
    """Return a schema whose own bounds are within 64 bits, if it allows integers and no other numbers."""
    kinds = schema.get("type")
    kinds = [kinds] if isinstance(kinds, str) else kinds
    if not isinstance(kinds, list) or "integer" not in kinds or "number" in kinds or not CHOSEN.isdisjoint(schema):
        return schema
    bounded = dict(schema)
    for (name, exclusive), limit, pick in zip(BOUNDS, (SMALLEST, LARGEST), (max, min), strict=True):
        if _is_number(bounded.get(exclusive)) and pick(bounded[exclusive], limit) == limit:
            del bounded[exclusive]
        if exclusive not in bounded:
            own = bounded.setdefault(name, limit)
            bounded[name] = pick(own, limit) if _is_number(own) else own
    return bounded


def share_integers(schema: JsonSchema) -> JsonSchema:
    """Return a whole schema in which equal bounded integers share a definition, since each takes a millisecond.

    References in it are local; see `localize_references`.
    llguidance compares the alternatives of ``oneOf`` by what is written there, so they stay as they are.
    """
    names: dict[str, str] = {}

    def share(part: JsonSchema) -> JsonSchema:
        kind = {name: value for name, value in part.items() if name not in UNBOUND}
        if kind.keys().isdisjoint(BOUNDS[1]) or not kind.keys() <= SHARED:
            return part
        return {"$ref": f"#/$defs/{names.setdefault(json.dumps(kind), f'{PREFIX}{len(names)}')}"}

    whole = rewrite_schema(schema, share, {*VALUES, "oneOf"})
    own = whole.get("$defs", {})
    if not isinstance(own, dict) or any(name.startswith(PREFIX) for name in own):
        return schema
    return {**whole, "$defs": {**own, **{name: json.loads(kind) for kind, name in names.items()}}} if names else schema


def _is_number(value: Any) -> bool:  # noqa: ANN401 -- any JSON
    return isinstance(value, int | float) and not isinstance(value, bool)

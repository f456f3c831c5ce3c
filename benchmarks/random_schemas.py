"""Makes JSON schemas from seeds: nested objects, arrays, bounded strings, enumerations, ranges and unions."""

from __future__ import annotations

import random
from typing import Any

NUM_SCHEMAS = 100
NAMES = ("name", "age", "city", "tags", "kind", "size", "note", "items")


def make_schema(source: random.Random, depth: int = 2) -> dict[str, Any]:
    """Return a schema of bounded size; the same for the same state of ``source``."""
    kind = source.choice(["object", "object", "array", "union", "leaf", "leaf", "leaf"] if depth else ["leaf"])
    if kind == "object":
        return make_object(source, depth)
    if kind == "array":
        least, most = source.randrange(2), 1 + source.randrange(4)
        return {"type": "array", "items": make_schema(source, depth - 1), "minItems": least, "maxItems": most}
    if kind == "union":
        return {"anyOf": [make_schema(source, depth - 1) for _ in range(2)]}
    return make_leaf(source)


def make_leaf(source: random.Random) -> dict[str, Any]:
    """Return the schema of a string, a number, a boolean or an enumeration."""
    low = source.randrange(5)
    leaves: list[dict[str, Any]] = [
        {"type": "boolean"},
        {"type": "integer", "minimum": low, "maximum": low + 50},
        {"type": "integer", "minimum": -low, "exclusiveMaximum": 100},
        {"type": "string", "minLength": low, "maxLength": low + 12},
        {"enum": source.sample(["red", "green", "blue", 1, 2, None], 3)},
    ]
    return source.choice(leaves)


def make_object(source: random.Random, depth: int) -> dict[str, Any]:
    """Return the schema of an object."""
    names = source.sample(NAMES, 2 + source.randrange(3))
    properties = {name: make_schema(source, depth - 1) for name in names}
    required = names[: 1 + source.randrange(len(names))]
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


SCHEMAS = [make_object(random.Random(seed), 3) for seed in range(NUM_SCHEMAS)]

"""Lists the names that patterns of properties match, where they are few.

llguidance allows a comma for one more property if a schema has a pattern, and a dead end follows it if the pattern
matches listed properties only. A pattern that matches few names is therefore replaced by properties of these names.
"""

from __future__ import annotations

import json
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any

from parallax_core.api import InvalidRequest
from parallax_grammar_tools.schema_refs import JsonSchema

if TYPE_CHECKING:
    from llguidance import LLTokenizer

MOST_NAMES = 16
"""The most names that a pattern is replaced by, if there are not more properties in its object."""
MOST_STEPS = 500
"""The most bytes that are looked at for a pattern, up to some 100 ms of a processor."""
COUNTS = ("maxProperties", "minProperties")
"""Keywords beside which llguidance takes required properties only."""


def list_names(schema: JsonSchema) -> JsonSchema:
    """Return a schema with properties instead of its own patterns that match few names.

    Raises:
        InvalidRequest: if a pattern cannot be compiled.
    """
    patterns, listed = schema.get("patternProperties"), schema.get("properties", {})
    if not isinstance(patterns, dict) or not isinstance(listed, dict):
        return schema
    required, has_count = schema.get("required", []), any(name in schema for name in COUNTS)
    kept, properties = {}, dict(listed)
    for pattern, part in patterns.items():
        names = find_names(pattern, max(MOST_NAMES, len(listed)))
        if names is None or part is False or (has_count and not all(name in required for name in names)):
            kept[pattern] = part
        else:
            properties |= {name: _join(properties.get(name, True), part) for name in names}
    return {**schema, "properties": properties, "patternProperties": kept} if len(kept) < len(patterns) else schema


def _join(one: Any, other: Any) -> Any:  # noqa: ANN401 -- any schemas
    """Return the schema of what obeys both schemas; references into the first of them hold."""
    if one is True or one == other:
        return other
    return {**one, "allOf": [*one.get("allOf", []), other]} if isinstance(one, dict) else one


@lru_cache(maxsize=1000)
def find_names(pattern: str, most: int) -> tuple[str, ...] | None:
    """Return the names that a pattern matches; None if they are more than ``most``, or take long to find.

    Raises:
        InvalidRequest: if it cannot be compiled.
    """
    from llguidance import LLMatcher

    source = LLMatcher.grammar_from_json_schema(json.dumps({"type": "string", "pattern": pattern}))
    begin, found = LLMatcher(_tokenizer(), source, log_level=0), set[str]()
    if begin.is_error():
        reason = " ".join(begin.get_error().split())[:200]
        message = f"the pattern {pattern[:100]!r} of 'patternProperties' cannot be compiled: {reason}"
        raise InvalidRequest(message, "grammar")
    open_ends = [(begin, b"")]
    for _ in range(MOST_STEPS):
        if not open_ends:
            return tuple(sorted(found))
        if len(open_ends) + len(found) > most:
            return None
        matcher, text = open_ends.pop()
        mask = matcher.compute_bitmask()
        if matcher.is_accepting():
            found.add(json.loads(text))
            continue
        for byte in (byte for byte in range(256) if mask[byte // 8] >> byte % 8 & 1):
            after = matcher.deep_copy()
            after.consume_token(byte)
            open_ends.append((after, text + bytes([byte])))
    return None


@cache
def _tokenizer() -> LLTokenizer:
    """Return a tokenizer whose tokens are bytes."""
    from llguidance import LLTokenizer

    return LLTokenizer("byte")

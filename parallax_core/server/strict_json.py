"""Parses and validates the JSON of a body, and explains its first fault."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, TypeVar

from pydantic import ValidationError

from parallax_core.base.errors import InvalidRequest
from parallax_core.server.fields import TOGETHER, VARIANT, Strict

Body = TypeVar("Body", bound=Strict)

MOST_QUOTED = 64
"""The most characters of a value that an error repeats."""
UNREADABLE: dict[type[Exception], str] = {
    UnicodeDecodeError: "the body is not valid UTF-8",
    RecursionError: "the body is nested too deeply",
    ValueError: "a number in the body has too many digits",
}
"""The messages for JSON that cannot be read for reasons other than its syntax."""


WORDS = {
    "model_type": "must be an object",
    "model_attributes_type": "must be an object",
    "dict_type": "must be an object",
    "list_type": "must be a list",
    "string_type": "must be a string",
    "int_type": "must be an integer",
    "int_from_float": "must be an integer",
    "float_type": "must be a number",
    "finite_number": "must be a finite number",
    "bool_type": "must be true or false",
    "none_required": "must be null",
    "greater_than_equal": "must be at least {ge}",
    "greater_than": "must be greater than {gt}",
    "less_than_equal": "must be at most {le}",
    "less_than": "must be less than {lt}",
    "string_too_short": "must have at least {min_length} characters",
    "too_short": "must not be empty",
    "string_too_long": "must have at most {max_length} characters",
    "string_pattern_mismatch": "must match {pattern}",
}
"""What a value must be, in the words of JSON, by the type of Pydantic's error."""


def read_body(data: bytes, schema: type[Body]) -> Body:
    """Return a body as an instance of ``schema``.

    Raises:
        InvalidRequest: if it is not JSON or not valid by ``schema``; it names the first fault.
    """
    content = _read_json(data)
    if not isinstance(content, dict):
        message = "the body is not a JSON object"
        raise InvalidRequest(message)
    try:
        return schema.model_validate(content)
    except ValidationError as error:
        raise explain(error.errors(include_url=False)) from None


def explain(errors: Sequence[Mapping[str, Any]]) -> InvalidRequest:
    """Return the error for the client from Pydantic's errors, whose locations begin with the name of a field."""
    first = max(errors, key=_rank)
    place = [str(part) for part in first["loc"] if not _is_variant(part)]
    if first["type"] == TOGETHER:
        field = first["ctx"]["param"]
        path = ".".join([*place, field])
        return InvalidRequest(first["msg"].replace(f"'{field}'", f"'{path}'"), path)
    param = ".".join(place) or None
    return InvalidRequest(_describe(first, param), param)


def _read_json(data: bytes) -> Any:  # noqa: ANN401 -- whatever the client sent
    try:
        return json.loads(data, object_pairs_hook=_gather)
    except json.JSONDecodeError as error:
        message = f"the body is not valid JSON: {error.msg}"
        raise InvalidRequest(message) from None
    except tuple(UNREADABLE) as error:
        raise InvalidRequest(UNREADABLE[type(error)]) from None


def _gather(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object's fields; refuse duplicate names, for which JSON defines no meaning (RFC 8259, section 4)."""
    fields = dict(pairs)
    if len(fields) < len(pairs):
        counts = Counter(name for name, _ in pairs)
        name = next(name for name, count in counts.items() if count > 1)
        message = f"the body has '{name}' twice"
        raise InvalidRequest(message, name)
    return fields


def _rank(error: Mapping[str, Any]) -> tuple[bool, bool, int]:
    """Rank an error: of the variants of a union, the one whose validation got furthest explains most."""
    kind = error["type"]
    is_other_kind = kind.endswith("_type") or (kind == "literal_error" and not isinstance(error.get("input"), str))
    return kind == "too_long", not is_other_kind, len(error["loc"])


def _is_variant(part: int | str) -> bool:
    """Return whether a part of an error's location names a variant of a union rather than a field."""
    return str(part).startswith(
        (VARIANT, "list[", "literal[", "function-", "constrained-", "tagged-union[")
    ) or part in {"str", "[key]", *_list_classes(Strict)}


@cache
def _list_classes(root: type[Strict]) -> frozenset[str]:
    """Return the names of the classes of bodies, which are no names of the API."""
    found = {root.__name__}
    return frozenset(found.union(*(_list_classes(each) for each in root.__subclasses__())))


def _describe(first: Mapping[str, Any], param: str | None) -> str:
    kind, text, value = first["type"], str(first["msg"]).removeprefix("Value error, "), first.get("input")
    text = WORDS.get(kind, text).format_map(first.get("ctx", {})) if kind in WORDS else text
    text = text.replace("Input should be", "must be")
    if kind == "extra_forbidden":
        return f"unknown field '{param}'"
    if kind == "missing" and param:
        return f"'{param}' is missing"
    if kind == "literal_error" and isinstance(value, str) and len(value) <= MOST_QUOTED:
        text = f"{text}, not {value!r}"
    if text.startswith("must "):
        return f"'{param}' {text}" if param else f"the body {text}"
    return f"'{param}': {text}" if param else text

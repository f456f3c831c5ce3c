"""The JSON of a body, in which every name counts, and what is wrong with it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from pydantic import ValidationError

from parallax_core.base.errors import InvalidRequest
from parallax_core.server.fields import TOGETHER, Strict
from parallax_core.server.request_models import NEUTRAL

Body = TypeVar("Body", bound=Strict)

UNREADABLE: dict[type[Exception], str] = {
    UnicodeDecodeError: "the body is not valid UTF-8",
    RecursionError: "the body is nested too deeply",
    ValueError: "a number in the body has too many digits",
}
"""What keeps JSON from being read, beside its grammar."""


def read_body(data: bytes, schema: type[Body]) -> Body:
    """Return a body as what it must be.

    Raises:
        InvalidRequest: if it is no JSON or not as ``schema`` says; the first fault is named.
    """
    content = _read_json(data)
    if not isinstance(content, dict):
        message = "the body is no JSON object"
        raise InvalidRequest(message)
    try:
        return schema.model_validate(content)
    except ValidationError as error:
        raise explain(error.errors(include_url=False, include_input=False)) from None


def explain(errors: Sequence[Mapping[str, Any]]) -> InvalidRequest:
    """Return what to tell a client of Pydantic's errors; a location begins with the name of a field."""
    first = max(errors, key=_rank)
    if first["type"] == TOGETHER:
        return InvalidRequest(first["msg"], first["ctx"]["param"])
    param = ".".join(str(part) for part in first["loc"] if not _is_variant(part)) or None
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
    """Return an object's fields; JSON leaves open which of two by the same name counts (RFC 8259, section 4)."""
    fields = dict(pairs)
    if len(fields) < len(pairs):
        counts = Counter(name for name, _ in pairs)
        name = next(name for name, count in counts.items() if count > 1)
        message = f"the body has '{name}' twice"
        raise InvalidRequest(message, name)
    return fields


def _rank(error: Mapping[str, Any]) -> tuple[bool, bool, int]:
    """Of the ways a union failed, the one that got furthest tells most: it knew the type, and the items of the list."""
    return error["type"] == "too_long", not error["type"].endswith("_type"), len(error["loc"])


def _is_variant(part: int | str) -> bool:
    """Whether a part of an error's location names a variant of a union rather than a field."""
    return str(part).startswith(("list[", "function-", "constrained-")) or part in {"str", "[key]"}


def _describe(first: Mapping[str, Any], param: str | None) -> str:
    kind, text = first["type"], str(first["msg"]).removeprefix("Value error, ")
    if kind == "extra_forbidden" and param in NEUTRAL:
        neutral = " or ".join(repr(value) for value in NEUTRAL[param])
        return f"'{param}' is not supported yet; leave it out" + (f" or send {neutral}" if neutral else "")
    if kind == "extra_forbidden":
        return f"unknown field '{param}'"
    if kind == "missing" and param:
        return f"'{param}' is missing"
    return f"'{param}': {text}" if param else text

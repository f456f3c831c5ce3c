"""Compares an answer with the types of an official client: the fields that these have and the answer lacks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel


def list_missing(parsed: object, raw: Any, *, only_required: bool = False) -> Iterator[str]:
    """Yield the fields, each with its class, that a client's types have and ``raw`` does not.

    Args:
        parsed: what the client made of ``raw``.
        raw: the answer, decoded from JSON.
        only_required: leave out those that may be missing by the client's types.
    """
    if isinstance(parsed, list):
        for each, part in zip(parsed, raw, strict=True):
            yield from list_missing(each, part, only_required=only_required)
    if not isinstance(parsed, BaseModel):
        return
    for name, field in type(parsed).model_fields.items():
        key = field.alias or name
        if key in raw:
            yield from list_missing(getattr(parsed, name), raw[key], only_required=only_required)
        elif field.is_required() or not only_required:
            yield f"{type(parsed).__name__}.{name}"

"""Finds the model that a body names, without reading the rest of it."""

from __future__ import annotations

import msgspec


class NamedModel(msgspec.Struct):
    """The part of a body that says which model is meant."""

    model: str | None = None


def find_model(body: bytes) -> str | None:
    """Return the model that a body names; None: it names none, or is not valid."""
    try:
        return msgspec.json.decode(body, type=NamedModel).model or None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None

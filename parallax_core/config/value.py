"""Converts given values to the types of their keys."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec

from parallax_core.base.errors import BrokenPlugin, UsageError
from parallax_core.config.schema import Key, is_mapping, is_sequence, strip_type
from parallax_core.config.source import WrittenSetting

HIDDEN = "***"
BLAME = "report it to the authors of the plugin that declares it"


def read_value(section: str, key: Key, written: WrittenSetting) -> object:
    """Return the converted value of a key.

    In paths, ``~`` is the home folder; relative paths in a file are relative to the file's folder.

    Raises:
        UsageError: if it has another type or is out of range; the message names the place, the value and the expected.
        BrokenPlugin: if the type of the key is not supported.
    """
    value, origin = written.value, written.origin
    is_text = origin.kind in {"environment", "flag"} and isinstance(value, str)
    folder = Path(origin.name).parent if origin.kind == "file" else Path()

    def read_path(wanted: type[Any], given: object) -> object:
        if wanted is not Path:
            message = f"[{section}] {key.name} has the type {wanted.__name__}, which a configuration cannot hold"
            raise BrokenPlugin(message, BLAME)
        if not isinstance(given, str):
            raise TypeError("a path must be text")
        return folder / Path(given).expanduser()

    try:
        parsed = _parse_text(str(value), key) if is_text else value
        return msgspec.convert(parsed, key.written, strict=not is_text, dec_hook=read_path)
    except (msgspec.ValidationError, ValueError) as error:
        shown = HIDDEN if key.is_secret else repr(value)
        message = f"{origin.locate(section, key.name)} is {shown}: expected {key.expected}{_locate_part(str(error))}"
        raise UsageError(message, f"correct it, or remove it{_name_default(key)}") from error
    except TypeError as error:
        raise BrokenPlugin(f"[{section}] {key.name} cannot be read: {error}", BLAME) from error


def _name_default(key: Key) -> str:
    """Return the default of a key for a hint, or an empty string."""
    return f" for the default, {json.dumps(key.default, default=str)}" if key.default else ""


def _locate_part(reason: str) -> str:
    """Return the part of a list or table that an error of msgspec names."""
    _, dollar, place = reason.partition("`$")
    return f" (at {place.rstrip('`')})" if dollar and place.strip("`") else ""


def _parse_text(text: str, key: Key) -> object:
    """Split a list at commas, and a table at commas and ``=``; dots in a name separate nested tables."""
    plain = strip_type(key.type)
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if is_sequence(plain):
        return parts
    if is_mapping(plain):
        return _make_table(parts)
    return text


def _make_table(parts: list[str]) -> dict[str, Any]:
    table: dict[str, Any] = {}
    for part in parts:
        path, equals, value = part.partition("=")
        if not equals:
            raise ValueError(f"{part!r} has no '='")
        *above, last = path.strip().split(".")
        inner = table
        for name in above:
            inner = inner.setdefault(name, {})
            if not isinstance(inner, dict):
                raise ValueError(f"{name!r} is a value and a table")  # noqa: TRY004 -- it is what the user wrote
        if isinstance(inner.get(last), dict):
            raise ValueError(f"{last!r} is a value and a table")  # noqa: TRY004 -- as above
        inner[last] = value.strip()
    return table

"""Edits the file of API keys that a server reads."""

from __future__ import annotations

import hashlib
import logging
import os
import re
import secrets
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal

from parallax_core.api import UnknownName
from parallax_core.api.dialect import ChangeRefused

Role = Literal["user", "metrics", "admin"]

ID_LENGTH = 16
"""Characters of the id of a key, which is the beginning of its digest in hexadecimal digits."""


MARK = "#limits:"
"""Begins the line of the limits of the key below it; a comment for whoever does not know them."""
LIMIT = re.compile(r"(?P<name>\w+)=(?P<most>\d{1,9})")

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class KeyLimits:
    """The limits of a key, each like the server's setting of that name; 0: none beside that."""

    max_concurrent: int = 0
    """Requests at the same time."""
    max_per_minute: int = 0
    """Requests in a minute."""
    max_output_tokens: int = 0
    """Tokens that its running requests may generate, together."""


@dataclass(frozen=True, slots=True)
class KeyLine:
    """A key in a file."""

    id: str
    role: str
    name: str
    """The comment on the line before it; may be empty."""
    place: int
    """The index of its line."""
    limits: KeyLimits = KeyLimits()
    first: int = 0
    """The index of the first line that belongs to it: its comment, else its limits, else its own."""


def list_keys(path: Path) -> list[KeyLine]:
    """Return the keys of a file, without the keys themselves."""
    return _parse(_read(path))


def add_key(path: Path, role: Role, name: str, limits: KeyLimits) -> tuple[str, KeyLine]:
    """Append a new key of a role, with its name as a comment and its limits; return it with its line.

    Raises:
        ChangeRefused: if the file cannot be written.
    """
    lines, key = _read(path), secrets.token_urlsafe(32)
    above = [*([f"# {name}"] if name else []), *write_limits(limits)]
    _write(path, [*lines, *above, f"{key} {role}"])
    return key, KeyLine(name_key(key), role, name, len(lines) + len(above), limits, len(lines))


def limit_key(path: Path, key_id: str, limits: KeyLimits) -> KeyLine:
    """Replace the limits of a key, and return it.

    Raises:
        UnknownName: if there is no such key.
        ChangeRefused: if the file cannot be written.
    """
    lines = _read(path)
    found = _find(_parse(lines), key_id)
    for each in reversed(found):
        begin = each.first + bool(each.name)
        lines[begin : each.place] = write_limits(limits)
    _write(path, lines)
    return replace(found[0], limits=limits)


def write_limits(limits: KeyLimits) -> list[str]:
    """Return the line of limits in a file; no line without any."""
    given = [f"{name}={most}" for name, most in asdict(limits).items() if most]
    return [f"{MARK} {' '.join(given)}"] if given else []


def remove_key(path: Path, key_id: str, *, has_other_admin: bool) -> KeyLine:
    """Remove a key with the comment before it, and return it.

    Args:
        path: the file.
        key_id: of the key.
        has_other_admin: whether an administrator has a key that is not in the file.

    Raises:
        UnknownName: if there is no such key.
        ChangeRefused: if no administrator would be left, or the file cannot be written.
    """
    lines = _read(path)
    keys = _parse(lines)
    found = _find(keys, key_id)
    admins = [each for each in keys if each.role == "admin"]
    if admins and not has_other_admin and all(each in found for each in admins):
        raise ChangeRefused("this is the last key of an administrator", "make another one first")
    gone = {place for each in found for place in range(each.first, each.place + 1)}
    _write(path, [line for place, line in enumerate(lines) if place not in gone])
    return found[0]


def name_key(key: str) -> str:
    """Return the id of a key, which does not give the key away."""
    return hashlib.sha256(key.encode(errors="surrogateescape")).hexdigest()[:ID_LENGTH]


def _find(keys: Sequence[KeyLine], key_id: str) -> list[KeyLine]:
    """Return the lines of a key, mostly one; raises UnknownName without any."""
    if not (found := [each for each in keys if each.id == key_id]):
        raise UnknownName(f"there is no API key {key_id}")
    return found


def _parse(lines: Sequence[str]) -> list[KeyLine]:
    found, name, limits, first = list[KeyLine](), "", KeyLimits(), 0
    for place, line in enumerate(lines):
        words = line.split()
        if line.startswith(MARK):
            limits = _parse_limits(line)
            continue
        if words and not words[0].startswith("#"):
            role = words[1] if len(words) > 1 else "user"
            found.append(KeyLine(name_key(words[0]), role, name, place, limits, first))
        name = line.strip().lstrip("#").strip() if words and words[0].startswith("#") else ""
        limits, first = KeyLimits(), place if name else place + 1
    return found


def _parse_limits(line: str) -> KeyLimits:
    given = [LIMIT.fullmatch(word) for word in line.removeprefix(MARK).split()]
    try:
        return KeyLimits(**{each["name"]: int(each["most"]) for each in given if each is not None})
    except TypeError:
        logger.warning("an API key is not limited, since this version does not know all of its limits")
        return KeyLimits()


def _read(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines()


def _write(path: Path, lines: Sequence[str]) -> None:
    """Replace the file at once, so that the server never reads half of it."""
    target = path.resolve()
    try:
        mode = target.stat().st_mode & 0o777
        with tempfile.NamedTemporaryFile("w", encoding="utf-8", dir=target.parent, delete=False) as file:
            temporary = Path(file.name)
            file.write("".join(f"{line}\n" for line in lines))
        temporary.chmod(mode)
        temporary.replace(target)
    except OSError as error:
        message = f"the file of API keys cannot be changed: {os.strerror(error.errno or 0)}"
        raise ChangeRefused(message, "change it where it comes from: the server reads it again by itself") from error

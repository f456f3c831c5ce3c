"""Edits the file of API keys that a server reads."""

from __future__ import annotations

import hashlib
import os
import secrets
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from parallax_core.api import UnknownName
from parallax_core.api.dialect import ChangeRefused

Role = Literal["user", "metrics", "admin"]

ID_LENGTH = 16
"""Characters of the id of a key, which is the beginning of its digest in hexadecimal digits."""


@dataclass(frozen=True, slots=True)
class KeyLine:
    """A key in a file."""

    id: str
    role: str
    name: str
    """The comment on the line before it; may be empty."""
    place: int
    """The index of its line."""


def list_keys(path: Path) -> list[KeyLine]:
    """Return the keys of a file, without the keys themselves."""
    return _parse(_read(path))


def add_key(path: Path, role: Role, name: str) -> tuple[str, KeyLine]:
    """Append a new key of a role, with its name as a comment; return it with its line.

    Raises:
        ChangeRefused: if the file cannot be written.
    """
    lines, key = _read(path), secrets.token_urlsafe(32)
    _write(path, [*lines, *([f"# {name}"] if name else []), f"{key} {role}"])
    return key, KeyLine(name_key(key), role, name, len(lines) + bool(name))


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
    found = [each for each in keys if each.id == key_id]
    if not found:
        raise UnknownName(f"there is no API key {key_id}")
    admins = [each for each in keys if each.role == "admin"]
    if admins and not has_other_admin and all(each in found for each in admins):
        raise ChangeRefused("this is the last key of an administrator", "make another one first")
    gone = {place for each in found for place in range(each.place - bool(each.name), each.place + 1)}
    _write(path, [line for place, line in enumerate(lines) if place not in gone])
    return found[0]


def name_key(key: str) -> str:
    """Return the id of a key, which does not give the key away."""
    return hashlib.sha256(key.encode(errors="surrogateescape")).hexdigest()[:ID_LENGTH]


def _parse(lines: Sequence[str]) -> list[KeyLine]:
    found, name = [], ""
    for place, line in enumerate(lines):
        words = line.split()
        if words and not words[0].startswith("#"):
            found.append(KeyLine(name_key(words[0]), words[1] if len(words) > 1 else "user", name, place))
        name = line.strip().lstrip("#").strip() if words and words[0].startswith("#") else ""
    return found


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

"""Reads and writes key files: one key each, in 64 hexadecimal digits; peers' with a role."""

from __future__ import annotations

import os
import re
import stat
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Literal, NamedTuple, get_args

import zmq
from zmq.utils import z85

from parallax_core.api import ParallaxError

KEY_BYTES = 32
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
NodeRole = Literal["any", "worker", "head"]
"""The roles a node may have for nodes of this machine; see `parallax_core.api.Guarded`."""
ROLES: tuple[NodeRole, ...] = get_args(NodeRole)


@dataclass(frozen=True, slots=True)
class KeyPair:
    """A key of this machine: the public and the secret half, 32 bytes each."""

    public: bytes
    secret: bytes

    def __repr__(self) -> str:
        return f"KeyPair({self.public.hex()})"


class Key(NamedTuple):
    """A public key, its name and its role."""

    name: str
    public: bytes
    is_own: bool = False
    role: NodeRole = "any"
    """The role of its holder for nodes of this machine."""


def derive_public(secret: bytes) -> bytes:
    """Return the public key that belongs to a secret key."""
    return z85.decode(zmq.curve_public(z85.encode(secret)))


def parse_key(text: str) -> bytes:
    """Parse a public key from user input.

    Raises:
        ParallaxError: if it is not a public key.
    """
    try:
        key = bytes.fromhex(text)
    except ValueError:
        key = b""
    if len(key) != KEY_BYTES:
        message = f"{text!r} is not a public key"
        raise ParallaxError(message, "it has 64 hexadecimal digits; `parallax keys list` on its machine shows it")
    return key


def check_key_name(name: str) -> str:
    """Return the name of a key.

    Raises:
        ParallaxError: if it cannot be the name of a file.
    """
    if not NAME.fullmatch(name):
        raise ParallaxError(f"{name!r} cannot be the name of a key", "write up to 64 letters, digits, `.`, `_` and `-`")
    return name


def name_machine(node: str) -> str:
    """Return the name of a node's machine, which is also the name of the key for all its nodes."""
    return node.partition("/")[0]


def check_secret(path: Path) -> None:
    """Raise ParallaxError if others can read a file."""
    found = path.stat()
    if found.st_uid != os.getuid() or stat.S_IMODE(found.st_mode) & 0o077:
        raise ParallaxError(f"other users can read the secret key {path}", f"chmod 600 {path}")


def check_unwritable(path: Path) -> None:
    """Raise ParallaxError if other users can write to a file or folder, and so plant keys; a missing one is fine."""
    with suppress(FileNotFoundError):
        found = path.stat()
        if found.st_uid != os.getuid() or stat.S_IMODE(found.st_mode) & 0o022:
            raise ParallaxError(f"other users can write to {path}, and so allow their own keys", f"chmod go-w {path}")


def read_key(path: Path) -> tuple[bytes, NodeRole]:
    """Return the key in a file, and the role of its holder.

    Raises:
        ParallaxError: if the file holds no key.
    """
    try:
        digits, *rest = path.read_text(encoding="ascii").split()
        role: NodeRole = ROLES[ROLES.index(rest[0])] if rest else "any"
        return parse_key(digits), role
    except (ParallaxError, ValueError) as error:
        raise ParallaxError(f"{path} holds no key", "the file is damaged: make or allow that key again") from error


def write_key(path: Path, key: bytes, role: NodeRole = "any") -> None:
    """Write a key to a file that only the owner can read, replacing its content."""
    part = _write_part(path, f"{key.hex()}\n" if role == "any" else f"{key.hex()} {role}\n")
    part.replace(path)


def write_new_key(path: Path, key: bytes) -> bool:
    """Write a key to a file unless the file exists; return whether it was written."""
    part = _write_part(path, f"{key.hex()}\n")
    try:
        path.hardlink_to(part)
    except FileExistsError:
        return False
    finally:
        part.unlink()
    return True


def write_removal(folder: Path, public: bytes, name: str) -> None:
    """Keep in ``folder`` that a key was removed, which was called ``name``."""
    _write_part(folder / "removal", f"{name}\n").replace(folder / public.hex())


def make_folder(folder: Path) -> Path:
    """Return a folder for keys; makes it and its parent, for the owner only, if they are missing."""
    for each in (folder.parent, folder):
        each.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder


def _write_part(path: Path, text: str) -> Path:
    with NamedTemporaryFile("w", encoding="ascii", dir=path.parent, suffix=".part", delete=False) as file:
        file.write(text)  # readable by the owner only
    return Path(file.name)

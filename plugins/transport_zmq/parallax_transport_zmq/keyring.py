"""Keys of CURVE on disk: our own, which are secret, and the public ones of nodes that may talk to us.

``own/NAME.key`` and ``known/NAME.pub`` each hold one key as 64 hexadecimal digits. A key belongs to the node of its
name and to nodes called ``NAME/...``; our own key ``default`` belongs to any node, since whoever holds it is us.
"""

from __future__ import annotations

import logging
import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import zmq
from zmq.utils import z85

from parallax_core.api import ParallaxError

logger = logging.getLogger(__name__)

DEFAULT = "default"
KEY_BYTES = 32
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@dataclass(frozen=True, slots=True)
class KeyPair:
    """A key of our own; 32 bytes each."""

    public: bytes
    secret: bytes

    def __repr__(self) -> str:
        return f"KeyPair({self.public.hex()})"


class Keyring:
    """A folder of keys, read anew each time, so that what is allowed or removed holds at once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._own = folder / "own"
        self._known = folder / "known"

    def find_pair(self, node: str) -> KeyPair | None:
        """Return the key of our own that ``node`` uses, or ``default``, or None.

        Raises:
            ParallaxError: if others can read it, or it is damaged.
        """
        for name in (*list_names(node), DEFAULT):
            path = self._own / f"{name}.key"
            if path.exists():
                _check_mode(path)
                secret = _read_key(path)
                return KeyPair(derive_public(secret), secret)
        return None

    def find_public(self, node: str) -> bytes | None:
        """Return the public key that ``node`` has to prove, or None: that of a known node, or one of our own."""
        for name in list_names(node):
            if (path := self._known / f"{name}.pub").exists():
                return _read_key(path)
        pair = self.find_pair(node)
        return pair.public if pair else None

    def belongs(self, public: bytes, node: str) -> bool:
        """Return whether ``public`` is a key of ``node``."""
        return any(
            key == public and (name in list_names(node) or (is_own and name == DEFAULT))
            for name, key, is_own in self.list_keys()
        )

    def allows(self, public: bytes) -> bool:
        """Return whether ``public`` is a key of any node we know."""
        return any(key == public for _, key, _ in self.list_keys())

    def list_keys(self) -> Iterator[tuple[str, bytes, bool]]:
        """Yield (name, public key, whether it is our own); what cannot be read counts for nothing."""
        for path in (*sorted(self._own.glob("*.key")), *sorted(self._known.glob("*.pub"))):
            is_own = path.suffix == ".key"
            try:
                key = _read_key(path)
            except (OSError, ParallaxError) as error:
                logger.warning("left a key out: %s", error)
            else:
                yield path.stem, derive_public(key) if is_own else key, is_own

    def make(self, name: str) -> KeyPair:
        """Make a key of our own.

        Raises:
            ParallaxError: if there is one of that name.
        """
        public, secret = (z85.decode(key) for key in zmq.curve_keypair())
        path = _make_folder(self._own) / f"{check_key_name(name)}.key"
        if path.exists():
            raise ParallaxError(f"there is a key {name!r} already", f"keep it, or `parallax keys remove --own {name}`")
        _write_key(path, secret)
        _write_key(path.with_suffix(".pub"), public)
        return KeyPair(public, secret)

    def adopt(self, secret: bytes, *, replaces: bool = False) -> KeyPair:
        """Make a key of another machine this one's ``default``, so that each takes the other for itself.

        Args:
            secret: 32 bytes.
            replaces: whether it may take the place of another.

        Raises:
            ParallaxError: if there is another, and it may not.
        """
        path = _make_folder(self._own) / f"{DEFAULT}.key"
        pair = KeyPair(derive_public(secret), secret)
        if path.exists() and not replaces and _read_key(path) != secret:
            hint = "leave it, and `parallax keys allow` each machine's key on the other; or --force to replace it"
            raise ParallaxError("this machine has another key 'default'", hint)
        _write_key(path, secret)
        _write_key(path.with_suffix(".pub"), pair.public)
        return pair

    def allow(self, public: bytes, name: str) -> None:
        """Let whoever proves ``public`` talk to us as ``name``.

        Raises:
            ParallaxError: if another key is known by that name.
        """
        if name == DEFAULT:
            raise ParallaxError("the key 'default' is one of this machine's own", "give the name of the other node")
        path = _make_folder(self._known) / f"{check_key_name(name)}.pub"
        if path.exists() and _read_key(path) != public:
            hint = f"if it has a new one: `parallax keys remove {name}`, then again"
            raise ParallaxError(f"another key of {name!r} is known", hint)
        if not path.exists():
            _write_key(path, public)

    def remove(self, name: str, *, own: bool) -> None:
        """Forget a key.

        Raises:
            ParallaxError: if there is none.
        """
        path = self._own / f"{check_key_name(name)}.key" if own else self._known / f"{check_key_name(name)}.pub"
        if not path.exists():
            kind = "of our own" if own else "of another node"
            raise ParallaxError(f"there is no key {kind} called {name!r}", "`parallax keys list` shows those there are")
        path.unlink()
        if own:
            path.with_suffix(".pub").unlink(missing_ok=True)


def derive_public(secret: bytes) -> bytes:
    """Return the public key to a secret one."""
    return z85.decode(zmq.curve_public(z85.encode(secret)))


def parse_key(text: str) -> bytes:
    """Return a public key as a person gives it.

    Raises:
        ParallaxError: if it is none.
    """
    try:
        key = bytes.fromhex(text)
    except ValueError:
        key = b""
    if len(key) != KEY_BYTES:
        message = f"{text!r} is no public key"
        raise ParallaxError(message, "it has 64 hexadecimal digits; `parallax keys list` on its machine shows it")
    return key


def check_key_name(name: str) -> str:
    """Return the name of a key.

    Raises:
        ParallaxError: if it would not do as one of a file.
    """
    if not NAME.fullmatch(name):
        raise ParallaxError(f"{name!r} cannot be the name of a key", "write up to 64 letters, digits, `.`, `_` and `-`")
    return name


def name_machine(node: str) -> str:
    """Return what a key is called that holds for a node and for all of its machine."""
    return node.partition("/")[0]


def list_names(node: str) -> tuple[str, ...]:
    """Return the names of keys that speak for a node: its own, and that of the machine before a slash."""
    names = dict.fromkeys((node, name_machine(node)))
    return tuple(name for name in names if NAME.fullmatch(name) and name != DEFAULT)


def _check_mode(path: Path) -> None:
    found = path.stat()
    if found.st_uid != os.getuid() or stat.S_IMODE(found.st_mode) & 0o077:
        raise ParallaxError(f"others can read the secret key {path}", f"chmod 600 {path}")


def _make_folder(folder: Path) -> Path:
    for each in (folder.parent, folder):
        each.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder


def _read_key(path: Path) -> bytes:
    try:
        return parse_key(path.read_text(encoding="ascii").strip())
    except (ParallaxError, UnicodeDecodeError) as error:
        raise ParallaxError(f"{path} holds no key", "the file is damaged: make or allow that key again") from error


def _write_key(path: Path, key: bytes) -> None:
    part = path.with_suffix(f".{os.getpid()}.part")
    with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="ascii") as file:  # noqa: PTH123
        file.write(f"{key.hex()}\n")
    part.replace(path)

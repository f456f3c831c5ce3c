"""CURVE keys on disk: the secret keys of this machine, and the public keys of peers that may connect.

``own/NAME.key`` and ``known/NAME.pub`` each hold one key. A key belongs to the node of its name and to nodes called
``NAME/...``; the own key ``default`` belongs to any node: its holder is this machine.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import chain, count
from pathlib import Path

import zmq
from zmq.utils import z85

from parallax_core.api import ParallaxError
from parallax_transport_zmq.keyfile import (
    NAME,
    Key,
    KeyPair,
    NodeRole,
    check_key_name,
    check_secret,
    check_unwritable,
    derive_public,
    make_folder,
    name_machine,
    read_key,
    write_key,
    write_new_key,
)

logger = logging.getLogger(__name__)

DEFAULT = "default"
RESERVED = (DEFAULT, "head", "local")
"""Names that no machine may choose: a worker that is called like the head would replace its key."""
MOST_WANTED = 48
"""The most characters of the name that a machine chooses."""

Stamp = tuple[int, int, int, int]


class Keyring:
    """A folder of keys, read anew each time, so that changes take effect at once.

    A file is read again only when it has changed.
    """

    def __init__(
        self, folder: Path, heads: Mapping[str, bytes] | None = None, workers: Mapping[str, bytes] | None = None
    ) -> None:
        """Read the keys in ``folder``; those of ``heads`` and ``workers``, by name, are trusted too, and not kept."""
        self.folder = folder
        self._own = folder / "own"
        self._known = folder / "known"
        self._read: dict[Path, tuple[Stamp, Key | None]] = {}
        self._is_unsafe = False
        self._heads = {} if heads is None else heads
        self._workers = {} if workers is None else workers
        self._introduced: tuple[Key, ...] = ()

    def introduce(self, keys: Mapping[str, bytes]) -> None:
        """Trust the keys of these nodes as those of workers, in memory only, and no longer those of an earlier call."""
        self._introduced = tuple(Key(name_machine(node), key, role="worker") for node, key in keys.items())

    def find_pair(self, node: str) -> KeyPair | None:
        """Return the key of this machine that ``node`` uses, or ``default``, or None.

        Raises:
            ParallaxError: if other users can read it, or it is damaged.
        """
        for name in (*list_names(node), DEFAULT):
            path = self._own / f"{name}.key"
            if path.exists():
                check_secret(path)
                secret, _ = read_key(path)
                return KeyPair(derive_public(secret), secret)
        return None

    def find_public(self, node: str) -> bytes | None:
        """Return the public key that ``node`` has to prove, or None: that of a known node, or one of this machine.

        Raises:
            ParallaxError: if it is damaged, or other users can write it.
        """
        self.check_folders()
        for name in list_names(node):
            for key in self._list_given():
                if key.name == name:
                    return key.public
            if (path := self._known / f"{name}.pub").exists():
                check_unwritable(path)
                return read_key(path)[0]
        pair = self.find_pair(node)
        return pair.public if pair else None

    def find_role(self, public: bytes, node: str) -> NodeRole | None:
        """Return the role of ``node`` if it proves ``public``; None: the key does not belong to it."""
        return find_role(self.list_keys(), public, node)

    def allows(self, public: bytes) -> bool:
        """Return whether ``public`` is a key of any node we know."""
        return any(key.public == public for key in self.list_keys())

    def check_folders(self) -> None:
        """Raise ParallaxError if other users can write to a folder of keys."""
        for folder in (self.folder, self._own, self._known):
            check_unwritable(folder)

    def list_keys(self) -> Iterator[Key]:
        """Yield all keys, this machine's first; skips files that cannot be read, or that other users can write."""
        try:
            self.check_folders()
            self._is_unsafe = False
        except ParallaxError as error:
            if not self._is_unsafe:  # logged once
                self._is_unsafe = True
                logger.warning("refusing every key: %s; %s", error.message, error.hint)
            return
        files = {**_list_files(self._own, ".key"), **_list_files(self._known, ".pub")}
        self._read = {path: entry for path, entry in self._read.items() if path in files}
        for path, stamp in files.items():
            before, key = self._read.get(path, (None, None))
            if stamp != before:
                key = self._examine(path)
                self._read[path] = (stamp, key)
            if key is not None:
                yield key
        yield from self._list_given()

    def _list_given(self) -> list[Key]:
        """Return the keys that are not in files; those of heads and workers as they are now."""
        heads = [Key(name, key, role="head") for name, key in self._heads.items()]
        workers = [Key(name, key, role="worker") for name, key in self._workers.items()]
        return [*heads, *workers, *self._introduced]

    def make(self, name: str) -> KeyPair:
        """Make a key of this machine.

        Raises:
            ParallaxError: if a key of that name exists.
        """
        path = make_folder(self._own) / f"{check_key_name(name)}.key"
        pair = make_pair()
        if not write_new_key(path, pair.secret):
            hint = f"`parallax keys list` shows its public half; to replace it: `parallax keys remove --own {name}`"
            raise ParallaxError(f"there is a key {name!r} already", hint)
        write_key(path.with_suffix(".pub"), pair.public)
        return pair

    def ensure_pair(self, node: str) -> KeyPair:
        """Return the key of this machine that ``node`` uses; makes the key ``default`` if none exists.

        Raises:
            ParallaxError: if it cannot be made or read.
        """
        if (pair := self.find_pair(node)) is not None:
            return pair
        pair, path = make_pair(), self._own / f"{DEFAULT}.key"
        try:
            make_folder(self._own)
            if not write_new_key(path, pair.secret):  # another process was faster
                return self.ensure_pair(node)
            write_key(path.with_suffix(".pub"), pair.public)
        except OSError as error:
            message = f"no key can be made in {self._own}: {error.strerror}"
            raise ParallaxError(message, "run the nodes as a user who can, or choose another PARALLAX_HOME") from error
        logger.info("made a key for the nodes of this user public=%s", pair.public.hex())
        return pair

    def adopt(self, secret: bytes, *, replaces: bool = False) -> KeyPair:
        """Import another machine's key as ``default``, so that both machines have the same identity.

        Args:
            secret: 32 bytes.
            replaces: whether to overwrite a different key.

        Raises:
            ParallaxError: if a different key exists and ``replaces`` is false.
        """
        path = make_folder(self._own) / f"{DEFAULT}.key"
        pair = KeyPair(derive_public(secret), secret)
        if path.exists() and not replaces and read_key(path)[0] != secret:
            hint = "leave it, and `parallax keys allow` each machine's key on the other; or --force to replace it"
            raise ParallaxError("this machine has another key 'default'", hint)
        write_key(path, secret)
        write_key(path.with_suffix(".pub"), pair.public)
        return pair

    def allow(self, public: bytes, name: str, role: NodeRole = "any") -> None:
        """Trust the holder of ``public`` as ``name``, in the role ``role``.

        Raises:
            ParallaxError: if another key is known by that name.
        """
        if name == DEFAULT:
            raise ParallaxError("the key 'default' is one of this machine's own", "give the name of the other node")
        path = make_folder(self._known) / f"{check_key_name(name)}.pub"
        if path.exists() and read_key(path)[0] != public:
            hint = f"if it has a new one: `parallax keys remove {name}`, then again"
            raise ParallaxError(f"another key of {name!r} is known", hint)
        write_key(path, public, role)

    def admit(self, public: bytes, wanted: str) -> str:
        """Trust a machine as a worker, and return its name: ``wanted``, or one like it if that is another's.

        A machine whose key is known keeps its name.
        """
        self.check_folders()
        wanted = "".join(letter if NAME.fullmatch(f"a{letter}") else "-" for letter in wanted)[:MOST_WANTED]
        wanted = wanted.strip("._-") or "node"
        known = {key.public: key for key in self.list_keys()}
        if public in known and not (known[public].is_own and known[public].name == DEFAULT):
            return known[public].name
        taken = {*RESERVED, *(key.name for key in known.values())}
        names = chain([wanted], (f"{wanted}-{number}" for number in count(2)))
        name = next(each for each in names if each not in taken)
        if public not in known:
            self.allow(public, name, "worker")
        return name

    def remove(self, name: str, *, own: bool) -> None:
        """Forget a key.

        Raises:
            ParallaxError: if there is no key of that name.
        """
        path = self._own / f"{check_key_name(name)}.key" if own else self._known / f"{check_key_name(name)}.pub"
        if not path.exists():
            kind = "of this machine" if own else "of another node"
            raise ParallaxError(f"there is no key {kind} called {name!r}", "`parallax keys list` shows the keys")
        path.unlink()
        if own:
            path.with_suffix(".pub").unlink(missing_ok=True)

    def _examine(self, path: Path) -> Key | None:
        is_own = path.suffix == ".key"
        try:
            (check_secret if is_own else check_unwritable)(path)
            key, role = read_key(path)
        except (OSError, ParallaxError) as error:
            logger.warning("ignored a key: %s", error)
            return None
        return Key(path.stem, derive_public(key) if is_own else key, is_own, "any" if is_own else role)


def make_pair() -> KeyPair:
    """Return a fresh key."""
    public, secret = (z85.decode(key) for key in zmq.curve_keypair())
    return KeyPair(public, secret)


def find_role(keys: Iterable[Key], public: bytes, node: str) -> NodeRole | None:
    """Return the role of ``node`` if it proves ``public``; None: the key does not belong to it."""
    for key in keys:
        if key.public == public and (key.name in list_names(node) or (key.is_own and key.name == DEFAULT)):
            return key.role
    return None


def list_names(node: str) -> tuple[str, ...]:
    """Return the names of keys that speak for a node: its own, and that of the machine before a slash."""
    names = dict.fromkeys((node, name_machine(node)))
    return tuple(name for name in names if NAME.fullmatch(name) and name != DEFAULT)


def _list_files(folder: Path, suffix: str) -> dict[Path, Stamp]:
    """Return the files of a folder by name, each with values that change with its content or permissions."""
    found = {}
    for path in sorted(folder.glob(f"*{suffix}")):
        with suppress(FileNotFoundError):  # removed meanwhile
            seen = path.stat()
            found[path] = (seen.st_ctime_ns, seen.st_size, seen.st_ino, seen.st_mode)
    return found

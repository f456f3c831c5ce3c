"""CURVE keys on disk: the secret keys of this machine, and the public keys of peers that may connect.

``own/NAME.key`` and ``known/NAME.pub`` each hold one key; ``removed/KEY`` says of a key that it was removed, and holds
its name. A key belongs to the node of its name and to nodes called ``NAME/...``; the own key ``default`` belongs to any
node: its holder is this machine.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Mapping
from itertools import chain, count
from pathlib import Path

import zmq
from zmq.utils import z85

from parallax_core.api import ParallaxError
from parallax_transport_zmq.keyfile import (
    NAME,
    ROLES,
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
    write_removal,
)
from parallax_transport_zmq.keyset import KNOWN, OWN, REMOVED, KeyFolder, group_keys

logger = logging.getLogger(__name__)

DEFAULT = "default"
RESERVED = (DEFAULT, "head", "local")
"""Names that no machine may choose: a worker that is called like the head would replace its key."""
MOST_WANTED = 48
"""The most characters of the name that a machine chooses."""


class Keyring:
    """The keys in a folder, and those that this process is told of. Safe for threads.

    If it may be older than now, keys are looked up in memory, in a time that does not depend on their number: what
    others add to the folder counts at once, and what they take from it within that time, or at the next `follow`.
    """

    def __init__(self, folder: Path, heads: Mapping[str, bytes] | None = None, age_s: float = 0.0) -> None:
        """Read the keys in ``folder``, as they were ``age_s`` ago or later; those of ``heads`` are trusted too."""
        self.folder = folder
        self._own, self._known, self._removed = folder / OWN, folder / KNOWN, folder / REMOVED
        self._kept = KeyFolder(folder, age_s)
        self._heads = {} if heads is None else heads
        self._introduced: Mapping[bytes, tuple[Key, ...]] = {}
        self._changing = threading.RLock()
        """Held while the folder is changed by what it has."""

    def introduce(self, keys: Mapping[str, bytes]) -> None:
        """Trust the keys of these nodes as those of workers, in memory only, and no longer those of an earlier call."""
        machines = (Key(name_machine(node), key, role="worker") for node, key in keys.items())
        self._introduced = group_keys(machines)

    def follow(self) -> None:
        """Notice changes of the folder, on the thread of the caller; others need not read it then."""
        self._kept.follow()

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
        kept = self._kept.look(fresh=True)
        for name in list_names(node):
            for key in self._list_given():
                if key.name == name and key.public not in kept.removed:
                    return key.public
            if (path := kept.files.get(name)) is not None:
                check_unwritable(path)
                return read_key(path)[0]
        pair = self.find_pair(node)
        return pair.public if pair else None

    def find_role(self, public: bytes, node: str) -> NodeRole | None:
        """Return the role of ``node`` if it proves ``public``; None: the key does not belong to it."""
        names = list_names(node)
        for fresh in (False, True):
            for key in self._find(public, fresh=fresh):
                if key.name in names or (key.is_own and key.name == DEFAULT):
                    return key.role
        return None

    def allows(self, public: bytes) -> bool:
        """Return whether ``public`` is a key of any node we know."""
        return any(self._find(public, fresh=fresh) for fresh in (False, True))

    def check_folders(self) -> None:
        """Raise ParallaxError if other users can write to a folder of keys."""
        self._kept.check()

    def list_keys(self) -> Iterator[Key]:
        """Yield all keys, this machine's first; skips files that cannot be read, or that other users can write."""
        kept = self._kept.look(fresh=True)
        given = self._list_given() if kept.is_safe else []
        yield from (key for key in (*kept.keys, *given) if key.is_own or key.public not in kept.removed)

    def list_removed(self) -> Mapping[bytes, str]:
        """Return the keys that were removed, each with the name that it had."""
        return self._kept.look(fresh=True).removed

    def list_machines(self) -> dict[str, bytes]:
        """Return the keys of the machines that may be workers here, by name."""
        kept = self._kept.look(fresh=True)
        gone = {*kept.removed, *(key.public for key in kept.keys if key.is_own)}
        others = (key for key in kept.keys if key.public not in gone and key.role != "head")
        return {key.name: key.public for key in others if not _is_reserved(key.name)}

    def _find(self, public: bytes, *, fresh: bool = True) -> tuple[Key, ...]:
        """Return the keys of this machine and of others that are ``public``; only the former if it was removed."""
        kept = self._kept.look(fresh=fresh)
        found = kept.by_public.get(public, ())
        if not kept.is_safe or public in kept.removed:
            return tuple(key for key in found if key.is_own)
        return (*found, *(key for key in self._list_heads() if key.public == public), *self._introduced.get(public, ()))

    def _list_given(self) -> list[Key]:
        """Return the keys that are not in files."""
        return [*self._list_heads(), *(key for keys in self._introduced.values() for key in keys)]

    def _list_heads(self) -> list[Key]:
        return [Key(name, key, role="head") for name, key in list(self._heads.items())]

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
        self._kept.refresh()
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
        self._kept.refresh()
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
        self._kept.refresh()
        return pair

    def allow(self, public: bytes, name: str, role: NodeRole = "any") -> None:
        """Trust the holder of ``public`` as ``name``, in the role ``role``, also if that key was removed.

        Raises:
            ParallaxError: if another key is known by that name, or by one that differs in case only.
        """
        if name.casefold() == DEFAULT:
            raise ParallaxError("the key 'default' is one of this machine's own", "give the name of the other node")
        with self._changing:
            path = make_folder(self._known) / f"{check_key_name(name)}.pub"
            known = self._kept.refresh().find_file(name)
            if known is not None and known != path:
                hint = f"case makes no other name: `parallax keys remove {known.stem}`, then again"
                raise ParallaxError(f"a key is known as {known.stem!r}", hint)
            if known is not None and read_key(known)[0] != public:
                hint = f"if it has a new one: `parallax keys remove {name}`, then again"
                raise ParallaxError(f"another key of {name!r} is known", hint)
            write_key(path, public, role)
            (self._removed / public.hex()).unlink(missing_ok=True)
            self._kept.refresh()

    def admit(self, public: bytes, wanted: str) -> str:
        """Trust a machine as a worker, and return its name: ``wanted``, or one like it if that is another's.

        A machine whose key is known keeps its name.

        Raises:
            ParallaxError: if it was removed.
        """
        self.check_folders()
        self.check_removed(public)
        wanted = "".join(letter if NAME.fullmatch(f"a{letter}") else "-" for letter in wanted)[:MOST_WANTED]
        wanted = wanted.strip("._-") or "node"
        with self._changing:
            known = self._find(public)
            if own_name := next((key.name for key in known if not (key.is_own and key.name == DEFAULT)), None):
                return own_name
            taken = {key.name.casefold() for key in self.list_keys()}
            names = chain([wanted], (f"{wanted}-{number}" for number in count(2)))
            name = next(each for each in names if each.casefold() not in taken and not _is_reserved(each))
            if not known:
                self.allow(public, name, "worker")
            return name

    def check_removed(self, public: bytes) -> None:
        """Raise ParallaxError if a key was removed, and not allowed since."""
        kept = self._kept.look(fresh=True)
        if public not in kept.removed and (self._removed / public.hex()).exists():  # of this moment
            kept = self._kept.refresh()
        if (name := kept.removed.get(public)) is not None and not self._find(public):
            hint = f"on the machine that removed it: `parallax keys allow {public.hex()} {name} --role worker`"
            raise ParallaxError(
                f"this machine was removed here, as {name!r}; only `parallax keys allow` lets it back", hint
            )

    def remove(self, name: str, *, own: bool) -> None:
        """Trust a key no longer, whoever vouches for it, until it is allowed again; a key of this machine is deleted.

        Raises:
            ParallaxError: if there is no key of that name, or it cannot be kept that it was removed.
        """
        with self._changing:
            path = self._own / f"{check_key_name(name)}.key" if own else self._kept.refresh().find_file(name)
            if path is None or not path.exists():
                kind = "of this machine" if own else "of another node"
                raise ParallaxError(f"there is no key {kind} called {name!r}", "`parallax keys list` shows the keys")
            if own:
                path.with_suffix(".pub").unlink(missing_ok=True)
            else:
                self._note_removal(path)
            path.unlink(missing_ok=True)
            self._kept.refresh()

    def find_key_role(self, public: bytes) -> NodeRole | None:
        """Return the role of the holder of ``public``, or None."""
        roles = {key.role for key in self._find(public)}
        return next((role for role in ROLES if role in roles), None)

    def take_over(
        self, machines: Mapping[str, bytes], removed: Mapping[bytes, str], servers: Mapping[str, bytes]
    ) -> None:
        """Trust the machines of another head as workers, ``servers`` also as heads, and none that was removed.

        Raises:
            ParallaxError: if that cannot be kept.
        """
        with self._changing:
            try:
                self._remove_all(removed)
                for name, public in machines.items():
                    if not self._find(public) and public not in self._kept.look(fresh=True).removed:
                        called = self.admit(public, name)
                        if called != name:  # another key has that name, by which the machine knows itself
                            logger.warning("machine %s has to join again: here it is called %s", name, called)
                for name, public in servers.items():
                    is_own = any(key.is_own for key in self._find(public))
                    if not is_own and public not in self._kept.look(fresh=True).removed:
                        self.allow(public, self.admit(public, name), "any")
            except OSError as error:
                message = f"the keys of machines cannot be kept in {self.folder}: {error.strerror}"
                raise ParallaxError(message, "is the disk full?") from error

    def _remove_all(self, removed: Mapping[bytes, str]) -> None:
        own = {key.public for key in self._kept.refresh().keys if key.is_own}
        for public, name in removed.items():
            if public not in own:
                write_removal(make_folder(self._removed), public, name)
        for key in self._kept.refresh().keys:
            if key.public in removed and not key.is_own:
                (self._known / f"{key.name}.pub").unlink(missing_ok=True)
        self._kept.refresh()

    def _note_removal(self, path: Path) -> None:
        """Record the removal of the key in a file; a damaged one can admit no machine.

        Raises:
            ParallaxError: if that fails; the file is removed all the same.
        """
        try:
            public, _ = read_key(path)
        except ParallaxError:
            return
        try:
            write_removal(make_folder(self._removed), public, path.stem)
        except OSError as error:
            path.unlink(missing_ok=True)
            message = f"{path.stem!r} is not trusted now, but a join code may admit it again: {error.strerror}"
            hint = f"make room in {self._removed.parent}, or `parallax cluster codes revoke`"
            raise ParallaxError(message, hint) from error


def make_pair() -> KeyPair:
    """Return a fresh key."""
    public, secret = (z85.decode(key) for key in zmq.curve_keypair())
    return KeyPair(public, secret)


def list_names(node: str) -> tuple[str, ...]:
    """Return the names of keys that speak for a node: its own, and that of the machine before a slash."""
    names = dict.fromkeys((node, name_machine(node)))
    return tuple(name for name in names if NAME.fullmatch(name) and name != DEFAULT)


def _is_reserved(name: str) -> bool:
    """Return whether no machine may have a name, in whatever case: a file system may ignore it."""
    return name.casefold() in RESERVED

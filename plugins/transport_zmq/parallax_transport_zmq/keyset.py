"""The keys in a folder, in memory: found in constant time, and read again after changes."""

from __future__ import annotations

import logging
import math
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from parallax_core.api import ParallaxError
from parallax_transport_zmq.keyfile import Key, check_secret, check_unwritable, derive_public, parse_key, read_key

logger = logging.getLogger(__name__)

FRESH_S = 0.005
"""Seconds for which keys are taken from memory where a change of a moment ago counts."""
UNSETTLED_S = 0.05
"""The least seconds between two scans of a folder because of one and the same change."""
SETTLED_NS = 100_000_000
"""Nanoseconds after a change of a folder in which a further one may have the same time."""
OWN, KNOWN, REMOVED = "own", "known", "removed"

FileState = tuple[int, ...]
FileStates = dict[str, FileState]
"""Files by path."""


@dataclass(frozen=True, slots=True)
class KeySet:
    """The keys of a folder at some time; a value."""

    keys: tuple[Key, ...] = ()
    """This machine's first."""
    by_public: Mapping[bytes, tuple[Key, ...]] = field(default_factory=dict)
    removed: Mapping[bytes, str] = field(default_factory=dict)
    """The keys that were removed, each with the name that it had."""
    files: Mapping[str, Path] = field(default_factory=dict)
    """The files of the keys that are allowed, readable or not, by name."""
    is_safe: bool = True
    """False: other users can write to a folder, and no key counts."""

    def find_file(self, name: str) -> Path | None:
        """Return the file of the key that is allowed as ``name``, else of one whose name differs in case only."""
        folded = (path for each, path in self.files.items() if each.casefold() == name.casefold())
        return self.files.get(name) or next(folded, None)


class KeyFolder:
    """Keeps the keys of a folder in memory. Safe for threads, of which one at a time reads it again."""

    def __init__(self, folder: Path, age_s: float = 0.0, clock: Callable[[], float] = time.monotonic) -> None:
        """Look at each file in ``folder`` every ``age_s`` seconds by ``clock``, and sooner if the folder changes.

        What is written into a file, or who may write it, does not change its folder.
        """
        self._folders = (folder, folder / OWN, folder / KNOWN, folder / REMOVED)
        self._age_s, self._clock = age_s, clock
        self._set: KeySet | None = None
        self._stamps: tuple[FileState, ...] | None = None
        """Of the folders when they were read; None: they may have changed since."""
        self._kinds: tuple[FileStates, FileStates, FileStates] = ({}, {}, {})
        """The files that were read: own, known and removed."""
        self._read: dict[str, tuple[FileState, Key | None]] = {}
        """The keys of files, by path, and the stamps of these when they were read."""
        self._is_settled = False
        """Whether a further change would change the stamps."""
        self._looked = self._scanned = -math.inf
        self._lock = threading.Lock()

    def look(self, *, fresh: bool = False) -> KeySet:
        """Return the keys, those of a moment ago if ``fresh``; older ones if another thread reads them again."""
        found, now = self._set, self._clock()
        if found is None:
            return self.refresh()
        age_s = min(self._age_s, FRESH_S) if fresh else self._age_s
        if now < self._looked + age_s or not self._lock.acquire(blocking=False):
            return found
        try:
            return self._follow(now)
        finally:
            self._lock.release()

    def follow(self) -> None:
        """Notice changes on the thread of the caller, unless another does."""
        if self._lock.acquire(blocking=False):
            try:
                self._follow(self._clock())
            finally:
                self._lock.release()

    def refresh(self) -> KeySet:
        """Return the keys as they are now, such as after a change by this process."""
        with self._lock:
            self._stamps = None
            return self._follow(self._clock())

    def check(self) -> None:
        """Raise ParallaxError if other users can write to a folder of keys."""
        for folder in self._folders:
            check_unwritable(folder)

    def _follow(self, now: float) -> KeySet:
        """Read the keys again if they may have changed."""
        stamps = tuple(_stamp_folder(folder) for folder in self._folders)
        wait_s = self._age_s if self._is_settled else min(self._age_s, UNSETTLED_S)
        if self._set is None or stamps != self._stamps or now >= self._scanned + wait_s:
            self._set = self._scan()
            self._stamps, self._is_settled, self._scanned = stamps, _is_settled(stamps), now
        self._looked = now
        return self._set

    def _scan(self) -> KeySet:
        """Return the keys in all files; of these, only those that have changed are read."""
        try:
            self.check()
        except ParallaxError as error:
            if self._set is None or self._set.is_safe:  # logged once
                logger.warning("refusing every key: %s; %s", error.message, error.hint)
            return KeySet(is_safe=False)
        _, own, known, removed = self._folders
        kinds = (_list_files(own, ".key"), _list_files(known, ".pub"), _list_files(removed, ""))
        if self._set is None or not self._set.is_safe or kinds != self._kinds:
            self._kinds = kinds
            return self._read_files(*kinds)
        return self._set

    def _read_files(self, own: FileStates, known: FileStates, removed: FileStates) -> KeySet:
        before, self._read = self._read, {}
        for path, stamp in {**own, **known}.items():
            entry = before.get(path)
            self._read[path] = entry if entry is not None and entry[0] == stamp else (stamp, _examine(Path(path)))
        keys = tuple(key for _, key in self._read.values() if key is not None)
        removals = dict(filter(None, map(_read_removal, map(Path, removed))))
        return KeySet(keys, group_keys(keys), removals, {path.stem: path for path in map(Path, known)})


def group_keys(keys: Iterable[Key]) -> dict[bytes, tuple[Key, ...]]:
    """Return keys by their public halves."""
    found: dict[bytes, tuple[Key, ...]] = {}
    for key in keys:
        found[key.public] = (*found.get(key.public, ()), key)
    return found


def _examine(path: Path) -> Key | None:
    is_own = path.suffix == ".key"
    try:
        (check_secret if is_own else check_unwritable)(path)
        key, role = read_key(path)
    except (OSError, ParallaxError) as error:
        logger.warning("ignored a key: %s", error)
        return None
    return Key(path.stem, derive_public(key) if is_own else key, is_own, "any" if is_own else role)


def _read_removal(path: Path) -> tuple[bytes, str] | None:
    """Return the key that a file says was removed, and the name that it had."""
    try:
        key = parse_key(path.name)
    except ParallaxError:
        return None
    with suppress(OSError, UnicodeDecodeError):
        return key, path.read_text(encoding="ascii").strip()
    return key, ""


def _list_files(folder: Path, suffix: str) -> FileStates:
    """Return the files of a folder in the order of names, each with values that change with its content or rights."""
    found: FileStates = {}
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            with suppress(FileNotFoundError):  # removed meanwhile
                if entry.name.endswith(suffix):
                    found[entry.path] = _read_stamp(entry.stat())
    return dict(sorted(found.items()))


def _stamp_folder(folder: Path) -> FileState:
    """Return values that change with a folder, its mtime in nanoseconds first; empty without a folder."""
    try:
        return _read_stamp(folder.stat())
    except OSError:
        return ()


def _read_stamp(seen: os.stat_result) -> FileState:
    return (seen.st_ctime_ns, seen.st_size, seen.st_ino, seen.st_mode, seen.st_uid)


def _is_settled(stamps: tuple[FileState, ...]) -> bool:
    """Return whether a further change of one of these folders would give it another time."""
    now = time.time_ns()
    return all(now - stamp[0] > SETTLED_NS for stamp in stamps if stamp)

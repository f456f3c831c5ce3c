"""The LoRA adapters of a machine, each in a folder named by its content; server and stages share it.

A folder has the settings of PEFT, a file for each layer that the adapter changes, and a list of these with their
digests, from which the key follows. So a machine may have some layers alone, and knows that they are right.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import shutil
import stat
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import msgspec

from parallax_adapters.exported import write_export
from parallax_adapters.holds import FileHold, holding_alone
from parallax_adapters.peft_config import CONFIG, MOST_CONFIG_BYTES
from parallax_adapters.peft_files import (
    MOST_HEADER_BYTES,
    MOST_WEIGHT_BYTES,
    WEIGHTS,
    Adapter,
    check_files,
    read_adapter,
    read_layers,
    split_layers,
    write_matrices,
)
from parallax_core.api import LayerRange, ParallaxError, cache_folder

KEY = re.compile(r"[0-9a-f]{32}")
"""Matches a key: half of a SHA-256, in hexadecimal."""
LIST = "files.json"
"""The list of the files of an adapter."""
LAYER = re.compile(r"layer-(\d{1,4})\.safetensors")
"""Matches the name of the file of a layer."""
COPY = ".copy"
"""The mark of an adapter that another machine has."""
LONGEST_S = 7 * 86400.0
"""The seconds after which a copy is removed that was not begun again."""
FILES = (CONFIG, WEIGHTS)
CHUNK = 2**20
MOST_LAYER = 9999
"""The largest number of a layer."""
MOST_FILES = 1025
"""The most files of an adapter."""


class StoredFile(NamedTuple):
    """A file of an adapter, as its list has it."""

    size: int
    """In bytes."""
    digest: str
    """The SHA-256 in hexadecimal."""


FileList = Mapping[str, StoredFile]


class AdapterStore:
    """The store of this machine.

    Args:
        folder: where it is; None: ``adapters`` in the folder of caches.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder or cache_folder("adapters")
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def add(self, source: Path, max_rank: int = 0) -> str:
        """Copy an adapter into the store, and return its key: the same for the same matrices and settings.

        The copy is checked and not the source, whose owner may change it at any time.

        Args:
            source: its folder.
            max_rank: the largest rank that is allowed; 0: any.

        Raises:
            ParallaxError: if it is no adapter that can be used; see `read_adapter`.
        """
        check_files(source)
        made = Path(tempfile.mkdtemp(prefix=".new-", dir=self._folder))
        try:
            _copy(source, made)
            read_adapter(made, max_rank).check_finite()
            key = _split(made)
            self._keep(made, key)
        except OSError as error:
            raise ParallaxError(f"the adapter in {source} cannot be copied: {error}") from error
        finally:
            shutil.rmtree(made, ignore_errors=True)
        return key

    def has(self, key: str, layers: LayerRange | None = None) -> bool:
        """Whether the store has the adapter of a key, or what it has for some layers."""
        try:
            return not self.list_missing(key, layers)
        except ParallaxError:
            return False

    def list_missing(self, key: str, layers: LayerRange | None = None) -> list[str]:
        """Return the names of the files of an adapter that are not here, of some layers or of all.

        Raises:
            ParallaxError: if nothing of it is here.
        """
        folder = self.find(key)
        return [name for name in self.list_files(key) if _belongs(name, layers) and not (folder / name).is_file()]

    def list_files(self, key: str) -> FileList:
        """Return the files of an adapter, whether they are here or not.

        Raises:
            ParallaxError: if nothing of it is here.
        """
        return read_list(key, self.read_list(key))

    def list_layers(self, key: str) -> list[int]:
        """Return the numbers of the layers that an adapter changes, in order."""
        return sorted(int(found[1]) for name in self.list_files(key) if (found := LAYER.fullmatch(name)))

    def read_list(self, key: str) -> bytes:
        """Return the list of files as it is stored; see `list_files`."""
        try:
            return (self.find(key) / LIST).read_bytes()
        except OSError as error:
            raise self._explain_absence(key) from error

    def open(self, key: str, layers: LayerRange | None = None) -> Adapter:
        """Return the adapter of a key, or what it has for some layers.

        Raises:
            ParallaxError: if the store does not have it.
        """
        if self.list_missing(key, layers):
            raise self._explain_absence(key)
        return read_layers(self.find(key), layers)

    def hold(self, key: str) -> FileHold:
        """Keep the files of an adapter, whoever removes it, until the hold is released or the process ends."""
        return FileHold(self._find_lock(key))

    def begin(self, key: str, listed: bytes) -> None:
        """Begin to keep an adapter that another machine has, given its list of files.

        Raises:
            ParallaxError: if it is not the list of that adapter, or cannot be kept.
        """
        read_list(key, listed)
        folder = self.find(key)
        try:
            folder.mkdir(mode=0o700, exist_ok=True)
            (folder / COPY).touch()
            self._write(folder / LIST, [listed])
        except OSError as error:
            raise ParallaxError(f"the adapter {key} cannot be kept in {self._folder}: {error}") from error

    def read(self, key: str, name: str, start: int, most: int) -> bytes:
        """Return at most some bytes of a file of an adapter; none if it is not here."""
        try:
            with (self.find(key) / name).open("rb") as file:
                file.seek(start)
                return file.read(most)
        except OSError:
            return b""

    def put(self, key: str, name: str, chunks: Sequence[bytes]) -> None:
        """Keep a file of an adapter that was begun.

        Raises:
            ParallaxError: if it is not the file that the list has, or cannot be kept.
        """
        wanted, digest, size = self.list_files(key)[name], hashlib.sha256(), 0
        for chunk in chunks:
            digest.update(chunk)
            size += len(chunk)
        if StoredFile(size, digest.hexdigest()) != wanted:
            raise ParallaxError(f"{name} of the adapter {key} has arrived damaged", "load the adapter again")
        try:
            self._write(self.find(key) / name, chunks)
        except OSError as error:
            raise ParallaxError(f"{name} of the adapter {key} cannot be kept: {error}", "free some space") from error

    def export(self, key: str) -> Path:
        """Return a folder with an adapter in PEFT's format, for an engine that reads it itself.

        Raises:
            ParallaxError: if not all of it is here, or it cannot be written.
        """
        folder = self.find(key)
        if self.list_missing(key):
            raise self._explain_absence(key)
        target = folder / "peft"
        made = Path(tempfile.mkdtemp(prefix=".new-", dir=self._folder))
        try:
            if not (target / WEIGHTS).is_file():
                write_export(folder, made)
                with suppress(OSError):  # another process has just made it
                    made.rename(target)
        except OSError as error:
            raise ParallaxError(
                f"the adapter {key} cannot be written to {target}: {error}", "free some space"
            ) from error
        finally:
            shutil.rmtree(made, ignore_errors=True)
        return target

    def remove_copy(self, key: str) -> None:
        """Remove what is here of an adapter of another machine; one that was loaded here stays."""
        if self.is_copy(key):
            self.remove(key)

    def is_copy(self, key: str) -> bool:
        """Whether what is here of an adapter came from another machine."""
        return (self.find(key) / COPY).exists()

    def expire(self) -> None:
        """Remove old copies of nodes that ended without doing so, and the rest of loads that were killed."""
        for path in (*self._folder.glob(f"*/{COPY}"), *self._folder.glob(".new-*")):
            with suppress(OSError):
                if time.time() - path.stat().st_mtime <= LONGEST_S:
                    continue
                if path.name == COPY:
                    self.remove(path.parent.name)
                elif path.is_dir():
                    shutil.rmtree(path, ignore_errors=True)
                else:
                    path.unlink()

    def remove(self, key: str) -> None:
        """Remove the adapter of a key, if it is there, unless another process holds it; see `hold`.

        A stage that has it in memory keeps it while it is used.
        """
        folder = self.find(key)
        with holding_alone(self._find_lock(key)) as is_alone:
            if is_alone:
                shutil.rmtree(folder, ignore_errors=True)

    def find(self, key: str) -> Path:
        """Return the folder of a key, which may not exist.

        Raises:
            ParallaxError: if it is no key.
        """
        if not KEY.fullmatch(key):
            raise ParallaxError(f"{key[:80]!r} is no key of an adapter", "ask for it by the name it was loaded under")
        return self._folder / key

    def _find_lock(self, key: str) -> Path:
        return self.find(key).with_suffix(".lock")

    def _keep(self, made: Path, key: str) -> None:
        folder = self.find(key)
        if folder.is_dir() and not self.has(key):  # some layers of it, from another machine
            shutil.rmtree(folder, ignore_errors=True)
        with suppress(OSError):  # it is there already
            made.rename(folder)
        if not self.has(key):
            raise ParallaxError(f"the adapter {key} cannot be kept in {self._folder}")

    def _write(self, path: Path, chunks: Sequence[bytes]) -> None:
        number, made = tempfile.mkstemp(prefix=".new-", dir=self._folder)
        try:
            with os.fdopen(number, "wb") as file:
                for chunk in chunks:
                    file.write(chunk)
            Path(made).replace(path)
        finally:
            Path(made).unlink(missing_ok=True)

    def _explain_absence(self, key: str) -> ParallaxError:
        machine = platform.node() or "which has no name"
        message = f"the adapter {key} is not on this machine, {machine}"
        return ParallaxError(message, f"load it again, or copy its folder to {self._folder}")


def read_list(key: str, listed: bytes) -> FileList:
    """Return the files in a list, after checking that it belongs to a key.

    Raises:
        ParallaxError: if not.
    """
    try:
        found = msgspec.json.decode(listed, type=dict[str, StoredFile])
    except ValueError as error:
        raise ParallaxError(f"the list of files of the adapter {key} is damaged: {error}") from error
    is_right = make_key(listed) == key and CONFIG in found and len(found) <= MOST_FILES
    if not is_right or not all(map(_is_plausible, found.items())):
        raise ParallaxError(f"a list of files is not that of the adapter {key}", "load the adapter again")
    return found


def make_key(listed: bytes) -> str:
    """Return the key of the adapter with a list of files."""
    return hashlib.sha256(listed).hexdigest()[:32]


def _is_plausible(entry: tuple[str, StoredFile]) -> bool:
    name, file = entry
    most = MOST_CONFIG_BYTES if name == CONFIG else MOST_WEIGHT_BYTES + MOST_HEADER_BYTES
    return (name == CONFIG or LAYER.fullmatch(name) is not None) and 0 < file.size <= most


def _belongs(name: str, layers: LayerRange | None) -> bool:
    found = LAYER.fullmatch(name)
    return found is None or layers is None or layers.start <= int(found[1]) < layers.stop


def _copy(source: Path, target: Path) -> None:
    """Copy the files of an adapter, which may have been changed since they were checked."""
    for name in FILES:
        number = os.open(source / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)  # never wait for a pipe
        with os.fdopen(number, "rb") as old, (target / name).open("wb") as new:
            left = os.fstat(old.fileno()).st_size
            if not stat.S_ISREG(os.fstat(old.fileno()).st_mode) or left > MOST_WEIGHT_BYTES + MOST_HEADER_BYTES:
                raise ParallaxError(f"{name} in {source} has just been changed", "load the adapter again")
            while left > 0 and (chunk := old.read(min(CHUNK, left))):
                left -= new.write(chunk)


def _split(folder: Path) -> str:
    """Replace the matrices of an adapter by files of its layers, write the list of files, and return the key."""
    layers = split_layers(folder)
    if len(layers) >= MOST_FILES:
        raise ParallaxError(f"the adapter changes {len(layers)} layers; at most {MOST_FILES - 1} are supported")
    if max(layers) > MOST_LAYER:
        raise ParallaxError(f"the adapter changes the layer {max(layers)}; at most {MOST_LAYER} is supported")
    for number, matrices in layers.items():
        write_matrices(folder / f"layer-{number}.safetensors", matrices)
    layers.clear()
    (folder / WEIGHTS).unlink()
    names = sorted(path.name for path in folder.iterdir())
    listed = json.dumps({name: _describe(folder / name) for name in names}).encode()
    (folder / LIST).write_bytes(listed)
    return make_key(listed)


def _describe(path: Path) -> StoredFile:
    with path.open("rb") as file:
        return StoredFile(path.stat().st_size, hashlib.file_digest(file, "sha256").hexdigest())

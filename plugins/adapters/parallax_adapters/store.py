"""The LoRA adapters of a machine, each in a folder named by its content; server and stages share it."""

from __future__ import annotations

import hashlib
import platform
import re
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

from parallax_adapters.peft_config import CONFIG
from parallax_adapters.peft_files import WEIGHTS, Adapter, check_files, read_adapter
from parallax_core.api import ParallaxError, cache_folder

KEY = re.compile(r"[0-9a-f]{32}")
"""Matches a key: half of a SHA-256, in hexadecimal."""
FILES = (CONFIG, WEIGHTS)
CHUNK = 2**20


class AdapterStore:
    """The store of this machine.

    Args:
        folder: where it is; None: ``adapters`` in the folder of caches.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder or cache_folder("adapters")
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def add(self, source: Path, max_rank: int = 0) -> str:
        """Copy an adapter into the store, and return its key: the same for the same files.

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
            key = _copy(source, made)
            read_adapter(made, max_rank).check_finite()
            self._keep(made, key)
        except OSError as error:
            raise ParallaxError(f"the adapter in {source} cannot be copied: {error}") from error
        finally:
            shutil.rmtree(made, ignore_errors=True)
        return key

    def has(self, key: str) -> bool:
        """Whether the store has the adapter of a key."""
        return (self.find(key) / WEIGHTS).is_file()

    def open(self, key: str) -> Adapter:
        """Return the adapter of a key.

        Raises:
            ParallaxError: if the store does not have it.
        """
        if not self.has(key):
            message = f"the adapter {key} is not on this machine, {platform.node() or 'which has no name'}"
            raise ParallaxError(message, f"load it again, or copy its folder to {self._folder}")
        return read_adapter(self.find(key))

    def remove(self, key: str) -> None:
        """Remove the adapter of a key, if it is there; a stage that has it in memory keeps it while it is used."""
        shutil.rmtree(self.find(key), ignore_errors=True)

    def find(self, key: str) -> Path:
        """Return the folder of a key, which may not exist.

        Raises:
            ParallaxError: if it is no key.
        """
        if not KEY.fullmatch(key):
            raise ParallaxError(f"{key[:80]!r} is no key of an adapter", "ask for it by the name it was loaded under")
        return self._folder / key

    def _keep(self, made: Path, key: str) -> None:
        with suppress(OSError):  # it is there already
            made.rename(self.find(key))
        if not self.has(key):
            raise ParallaxError(f"the adapter {key} cannot be kept in {self._folder}")


def _copy(source: Path, target: Path) -> str:
    """Copy the files of an adapter, and return the key of the copy."""
    digest = hashlib.sha256()
    for name in FILES:
        with (source / name).open("rb") as old, (target / name).open("wb") as new:
            digest.update(f"{name} ".encode())
            inner = hashlib.sha256()
            while chunk := old.read(CHUNK):
                new.write(chunk)
                inner.update(chunk)
            digest.update(inner.digest())
    return digest.hexdigest()[:32]

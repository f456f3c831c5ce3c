"""Writes a model folder that appears when it is whole."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from glob import escape
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from parallax_core.api import ParallaxError, format_bytes

SHARD_BYTES = 1 << 30
"""The most bytes of a file, which are held in memory, unless a single tensor has more."""
SPARE_BYTES = 64 << 20
"""The room for tokenizer, configuration and headers."""
LEFT_OUT = ("*.safetensors", "*.safetensors.*", "*.part", "*.partial", "*.gguf", "*.bin", "parallax.json", ".*")


class FolderWriter:
    """Collects tensors, and writes a file of them whenever it is full."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._waiting: dict[str, torch.Tensor] = {}
        self._shards: list[list[str]] = []
        self._total = 0

    def add(self, name: str, tensor: torch.Tensor) -> None:
        """Take one tensor."""
        if self._waiting and sum(each.nbytes for each in self._waiting.values()) + tensor.nbytes > SHARD_BYTES:
            self._write()
        self._waiting[name], self._total = tensor.contiguous(), self._total + tensor.nbytes

    def close(self, source: Path, config: Mapping[str, Any]) -> None:
        """Write the rest: the index, what else the model at ``source`` has, and last its configuration."""
        self._write()
        count = len(self._shards)
        files = [f"model-{number:05d}-of-{count:05d}.safetensors" for number in range(1, count + 1)]
        files = files if count > 1 else ["model.safetensors"]
        for number, file in enumerate(files):
            self._name(number).rename(self._folder / file)
        places = {name: file for file, names in zip(files, self._shards, strict=True) for name in names}
        index = {"metadata": {"total_size": self._total}, "weight_map": places}
        _write_object(self._folder / "model.safetensors.index.json", index)
        for path in source.iterdir():
            if path.is_file() and path.name != "config.json" and not any(path.match(each) for each in LEFT_OUT):
                shutil.copyfile(path, self._folder / path.name)
        _write_object(self._folder / "config.json", config)

    def _write(self) -> None:
        save_file(self._waiting, self._name(len(self._shards)), {"format": "pt"})
        self._shards.append(list(self._waiting))
        self._waiting = {}

    def _name(self, number: int) -> Path:
        return self._folder / f"shard-{number}.part"  # names hold the number of files, which is known at the end


@contextmanager
def appearing(target: Path, num_bytes: int, *, is_file: bool = False) -> Iterator[Path]:
    """Yield an empty folder, or the path of a file to write, which becomes ``target`` if all goes well.

    Otherwise nothing is left. Several may write to one place at once: the first to end has it.

    Raises:
        ParallaxError: if there is something at ``target``, or no room for ``num_bytes`` beside it.
    """
    _check_absent(target)
    if not target.parent.is_dir():
        raise ParallaxError(f"there is no folder {target.parent}", "make it, or name another folder with --out")
    if (free := shutil.disk_usage(target.parent).free) < (needed := num_bytes + SPARE_BYTES):
        message = f"the model needs {format_bytes(needed)} on the disk, and {format_bytes(free)} are free"
        raise ParallaxError(message, "name a folder on another disk with --out")
    for path in target.parent.glob(f".{escape(target.name)}.*.part"):
        with _holding(path) as is_held:  # a run that was killed has lost its lock
            if is_held:
                shutil.rmtree(path, ignore_errors=True)
    with _scratch(target) as scratch:
        made = scratch / target.name
        if not is_file:
            made.mkdir()
        yield made
        _check_absent(target)
        made.rename(target)


@contextmanager
def _scratch(target: Path) -> Iterator[Path]:
    """Yield a folder beside ``target`` that no other run removes, and remove it at the end."""
    while True:
        scratch = Path(tempfile.mkdtemp(prefix=f".{target.name}.", suffix=".part", dir=target.parent))
        with _holding(scratch) as is_held:
            if not is_held:  # another run has just taken it for one that was left
                continue
            try:
                yield scratch
            finally:
                shutil.rmtree(scratch, ignore_errors=True)
            return


@contextmanager
def _holding(folder: Path) -> Iterator[bool]:
    """Hold a folder until the context or the process ends, and yield whether it could be held."""
    try:
        number = os.open(folder, os.O_RDONLY)
    except OSError:
        yield False
        return
    try:
        yield _lock(number) and folder.exists()
    finally:
        os.close(number)


def _lock(number: int) -> bool:
    try:
        fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _check_absent(target: Path) -> None:
    if target.exists():
        raise ParallaxError(f"{target} exists", "remove it, or name another place with --out")


def _write_object(path: Path, found: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")

"""Reads the headers of a model folder's weight files.

The format is described at https://huggingface.co/docs/safetensors: eight bytes of header length (little endian), a
JSON header that gives each tensor's dtype, shape and offsets, then the data.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from parallax_core.api import ParallaxError, find_missing

LENGTH_BYTES = 8
MAX_HEADER_BYTES = 100_000_000
FETCH_REST = "fetch the rest with `parallax models pull`"
REFETCH = "the folder is incomplete or damaged; remove it and fetch the model again"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The tensors of a model folder, by the headers of its files and its index."""

    tensors: dict[str, str]
    """The file of each tensor, by the tensor's name."""
    holes: frozenset[str] = frozenset()
    """The tensors whose bytes are missing in files that are present, since the files were fetched in part."""


def read_checkpoint(folder: Path, *, is_part: bool = False) -> Checkpoint:
    """Read the headers of the weight files of ``folder``.

    Args:
        folder: the model folder.
        is_part: whether tensors, and whole files named by the index, may be missing.

    Raises:
        ParallaxError: if a file is missing, cut short or not safetensors, or the index is damaged.
    """
    files = sorted(folder.glob("model*.safetensors"))
    if not files:
        message = f"{folder} has no file model*.safetensors"
        raise ParallaxError(message, "point at the folder of a model, or fetch it again")
    index, here = _read_index(folder), {file.name for file in files}
    missing = find_missing(folder)
    if not is_part:
        _check_files(folder, set(index.values()) - here)
        _check_tensors(folder, missing)
    tensors = {name: file for name, file in index.items() if file not in here}  # files that are here have headers
    for file in files:
        tensors |= dict.fromkeys(json.loads(_read_header(file)).keys() - {"__metadata__"}, file.name)
    holes = frozenset(name for name in missing if tensors.get(name) in here)
    return Checkpoint(tensors, holes)


def read_json(path: Path) -> dict[str, Any]:
    """Return the JSON object in ``path``.

    Raises:
        ParallaxError: if the file is missing or holds something else.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        message = f"cannot read {path}: {error}"
        raise ParallaxError(message, REFETCH) from error
    if not isinstance(value, dict):
        message = f"{path} does not hold a JSON object"
        raise ParallaxError(message, REFETCH)
    return value


def _read_index(folder: Path) -> dict[str, str]:
    """Return the file of each tensor from the index of ``folder``; empty if there is no index."""
    index = folder / "model.safetensors.index.json"
    if not index.exists():
        return {}
    files = read_json(index).get("weight_map")
    if not isinstance(files, dict) or not all(isinstance(file, str) for file in files.values()):
        message = f"{index} does not give the file of each tensor"
        raise ParallaxError(message, REFETCH)
    return files


def _check_files(folder: Path, missing: set[str]) -> None:
    if missing:
        first, others = min(missing), len(missing) - 1
        message = f"{folder} lacks {first}" + (f" and {others} more files" if others else "")
        raise ParallaxError(message, REFETCH)


def _check_tensors(folder: Path, missing: Collection[str]) -> None:
    if missing:
        message = f"only a part of {folder} is on this machine, without {min(missing)}, one of {len(missing)} tensors"
        raise ParallaxError(message, FETCH_REST)


def _read_header(file: Path) -> bytes:
    """Return the JSON header of ``file``, after checking that the file has all the data in the header."""
    try:
        size = file.stat().st_size
        with file.open("rb") as stream:
            length = int.from_bytes(stream.read(LENGTH_BYTES), "little")
            header = stream.read(min(length, MAX_HEADER_BYTES))
    except OSError as error:
        message = f"cannot read {file}: {error.strerror}"
        raise ParallaxError(message, "check that it is a file, and its permissions") from error
    try:
        entries = json.loads(header)
        end = max([0, *(entry["data_offsets"][1] for name, entry in entries.items() if name != "__metadata__")])
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        message = f"{file} is not a safetensors file: its header cannot be read"
        raise ParallaxError(message, REFETCH) from error
    if LENGTH_BYTES + length + end > size:
        message = f"{file} is cut short: {size} of {LENGTH_BYTES + length + end} bytes"
        raise ParallaxError(message, REFETCH)
    return header

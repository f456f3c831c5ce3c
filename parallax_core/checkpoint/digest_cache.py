"""Digests of files of weights, made once and kept in this user's cache, so that later starts need not read for them.

Not beside the model, whose folder may be read-only, or shared. What is kept of a file counts as long as its size, its
number in the file system and its times are the same; one of these, the time of the entry, no copy can set back.
"""

from __future__ import annotations

import hashlib
import os
from contextlib import suppress
from pathlib import Path

import msgspec

from parallax_core.checkpoint.digest import SCHEME, digest_tensors
from parallax_core.checkpoint.partial import read_journal
from parallax_core.config.home import cache_folder

FOLDER = "weights"


class Kept(msgspec.Struct):
    """What is kept of a file."""

    path: str
    state: str
    """Changes whenever the file does, or its digests would."""
    tensors: dict[str, str]
    """The digest of each tensor."""


def read_digests(path: Path) -> dict[str, str]:
    """Return the digests of a file's tensors, as `digest_tensors` does: those that were kept, or else new ones."""
    if read_journal(path) is not None:  # it may grow at any time
        return digest_tensors(path)
    path = path.resolve()
    state = _describe_state(path)
    with suppress(OSError, msgspec.MsgspecError):
        kept = msgspec.json.decode(_place(path).read_bytes(), type=Kept)
        if (kept.path, kept.state) == (str(path), state):
            return kept.tensors
    tensors = digest_tensors(path)
    with suppress(OSError):  # a home that cannot be written to costs time, and nothing else
        _save(_place(path), Kept(str(path), state, tensors))
    return tensors


def _describe_state(path: Path) -> str:
    status = path.stat()
    times = f"{status.st_mtime_ns} {status.st_ctime_ns}"
    return f"{SCHEME} {status.st_size} {times} {status.st_dev} {status.st_ino}"


def _place(path: Path) -> Path:
    return cache_folder(FOLDER) / f"{hashlib.sha256(str(path).encode()).hexdigest()[:32]}.json"


def _save(place: Path, kept: Kept) -> None:
    """Write what others may read or write meanwhile."""
    draft = place.with_suffix(f".{os.getpid()}.part")
    draft.write_bytes(msgspec.json.encode(kept))
    draft.replace(place)

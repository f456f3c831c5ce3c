"""Copies the state of this machine's coordinator into one file, and back.

The state is codes, plans, the term and the keys. A backup is a tar archive for its owner only, whose first member lists
the SHA-256 of all others.
"""

from __future__ import annotations

import fcntl
import gzip
import io
import json
import os
import shutil
import sqlite3
import tarfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from hashlib import sha256
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory

from parallax_cluster.config.home import cluster_file
from parallax_cluster.deploy.standby import find_standby
from parallax_core.api import ParallaxError, keys_folder

LIST = "parallax-backup.json"
"""The member that lists the others."""
VERSION = 1
"""The version of the layout of backups."""
MOST_BYTES = 2**30
"""The most bytes of all files in a backup."""
DATABASE = ".db"
LEFT_OUT = (".lock", ".part", ".db-journal", ".db-wal", ".db-shm")
"""The ends of the names of files that mean nothing elsewhere: databases are copied as a whole."""


def list_folders() -> dict[str, Path]:
    """Return the folders of a coordinator's state, by their names in a backup."""
    return {"cluster": cluster_file().parent, "keys": keys_folder()}


@contextmanager
def hold_state(*, alone: bool = False) -> Iterator[None]:
    """Mark the state of this machine's coordinator as used meanwhile.

    Raises:
        ParallaxError: if it is to be used ``alone``, and is in use.
    """
    try:
        lock = _open_lock()
    except OSError:  # a server serves with a full disk, too
        yield
        return
    with lock:
        try:
            fcntl.flock(lock, (fcntl.LOCK_EX if alone else fcntl.LOCK_SH) | fcntl.LOCK_NB)
        except BlockingIOError as error:
            who = "a server of this user runs" if alone else "a backup is being restored"
            raise ParallaxError(f"{who} here, which uses the state of the server", "end it first") from error
        if alone and find_standby() is not None:
            raise ParallaxError("a standby of this user runs here, which uses the state of the server", "end it first")
        yield


def _open_lock() -> io.TextIOWrapper:
    path = cluster_file().parent.with_suffix(".lock")
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    return path.open("a", encoding="utf-8")


def back_up(path: Path) -> int:
    """Write the state of this machine's coordinator, which may run, into a new file; return the number of its files.

    Raises:
        ParallaxError: if there is no state, the file exists, or something cannot be read or written.
    """
    try:
        files = dict(_read_state())
        if not any(name.startswith("cluster/") for name in files):
            raise ParallaxError("there is no state of a server here", "`parallax run` makes it, for the same user")
        write_archive(path, files)
    except FileExistsError as error:
        raise ParallaxError(f"{path} exists already", "give the name of a new file") from error
    except (OSError, sqlite3.Error) as error:
        raise ParallaxError(f"the state cannot be copied: {error}", "is the disk full?") from error
    return len(files)


def _read_state() -> Iterator[tuple[str, bytes]]:
    for root, folder in list_folders().items():
        for file in sorted(folder.rglob("*")):
            if file.is_file() and not file.is_symlink() and not file.name.endswith(LEFT_OUT):
                name = PurePosixPath(root, *file.relative_to(folder).parts).as_posix()
                yield name, _copy_database(file) if file.suffix == DATABASE else file.read_bytes()


def _copy_database(path: Path) -> bytes:
    """Return a database as of one moment, although others may write to it."""
    with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as database:
        return database.serialize()


def write_archive(path: Path, files: Mapping[str, bytes]) -> None:
    """Write files into a new backup; raises OSError if it exists or cannot be written."""
    sums = {name: sha256(data).hexdigest() for name, data in files.items()}
    listed = json.dumps({"version": VERSION, "files": sums}, indent=1).encode()
    with os.fdopen(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb") as sink:
        try:
            with tarfile.open(fileobj=sink, mode="w:gz") as archive:
                for name, data in {LIST: listed, **files}.items():
                    member = tarfile.TarInfo(name)
                    member.size, member.mode = len(data), 0o600
                    archive.addfile(member, io.BytesIO(data))
        except OSError:
            path.unlink()
            raise


def read_backup(path: Path) -> dict[str, bytes]:
    """Return the files in a backup, by name.

    Raises:
        ParallaxError: if it cannot be read, is damaged, or is none.
    """
    try:
        with gzip.open(path) as whole:  # to its end, where its checksum is
            data = whole.read(MOST_BYTES)
        with tarfile.open(fileobj=io.BytesIO(data), mode="r:") as archive:
            files = dict(_read_members(archive))
        listed = json.loads(files.pop(LIST))
        version, sums = listed["version"], dict(listed["files"])
    except (OSError, EOFError, zlib.error, tarfile.TarError, LookupError, ValueError, TypeError) as error:
        raise _refuse(path, str(error) or type(error).__name__) from error
    if version != VERSION:
        raise ParallaxError(f"{path} has version {version} of the layout of backups", f"this release reads {VERSION}")
    if sums != {name: sha256(data).hexdigest() for name, data in files.items()}:
        raise _refuse(path, "its files are not those that it lists")
    for name, data in files.items():
        _check_file(path, name, data)
    return files


def _read_members(archive: tarfile.TarFile) -> Iterator[tuple[str, bytes]]:
    for member in archive:
        content = archive.extractfile(member) if member.isreg() else None
        if content is None:
            raise ValueError(f"{member.name!r} is no file")
        yield member.name, content.read()


def _check_file(path: Path, name: str, data: bytes) -> None:
    root, _, inside = name.partition("/")
    is_plain = PurePosixPath(inside).as_posix() == inside and not {"", ".", ".."} & set(inside.split("/"))
    if root not in list_folders() or not is_plain:
        raise _refuse(path, f"it has a file {name!r}, which belongs to no server")
    if name.endswith(DATABASE):
        with closing(sqlite3.connect(":memory:")) as database:
            try:
                database.deserialize(data)
                found = database.execute("PRAGMA quick_check").fetchone()[0]
            except sqlite3.Error as error:
                found = str(error)
        if found != "ok":
            raise _refuse(path, f"its database {name} is damaged: {found}")


def _refuse(path: Path, reason: str) -> ParallaxError:
    return ParallaxError(f"{path} is no backup, or a damaged one: {reason}", "nothing was changed")


def restore(path: Path) -> list[Path]:
    """Put the state in a backup in the place of this machine's; return the folders that have what was there before.

    Raises:
        ParallaxError: if a server or standby runs here, or the file is damaged; nothing has changed then.
    """
    files = read_backup(path)
    try:
        with hold_state(alone=True):
            return [former for root in list_folders() if (former := _restore_folder(root, files)) is not None]
    except OSError as error:
        hint = "what was there before is in the folders whose names end in .before"
        raise ParallaxError(f"the state cannot be restored: {error}", hint) from error


def _restore_folder(root: str, files: Mapping[str, bytes]) -> Path | None:
    """Put the files of one folder in place; return where those that were there before are now, if there were any."""
    folder = list_folders()[root]
    folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with TemporaryDirectory(dir=folder.parent) as draft:  # only its owner reads it
        made = Path(draft, root)
        made.mkdir(mode=0o700)
        for name, data in files.items():
            if name.startswith(f"{root}/"):
                _write_file(Path(draft, name), data)
        former = folder.with_name(f"{root}.before")
        has_former = any(not path.name.endswith(LEFT_OUT) for path in folder.rglob("*"))
        if has_former:
            shutil.rmtree(former, ignore_errors=True)
        if folder.exists():
            folder.rename(former if has_former else Path(draft, "empty"))
        made.rename(folder)
    return former if has_former else None


def _write_file(path: Path, data: bytes) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with os.fdopen(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb") as sink:
        sink.write(data)

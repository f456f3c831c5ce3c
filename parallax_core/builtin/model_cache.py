"""Where a source keeps the models it downloads.

``FOLDER/org--name[@revision]/`` is a model, or a part of one, and stays where it is while it grows. In it lies a record
of what belongs to it: ``.complete.json`` where all of that is here and was checked, ``.partial.json`` before. ``FOLDER/
.locks/`` keeps two processes from fetching into one model at a time.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import quote

import msgspec
from filelock import FileLock, Timeout

from parallax_core.base.errors import ParallaxError, UnknownName
from parallax_core.builtin.model_files import choose_files, choose_weights
from parallax_core.builtin.partial_file import RemoteFile
from parallax_core.checkpoint.partial import read_present
from parallax_core.contracts.progress import Progress
from parallax_core.contracts.source import StoredModel

COMPLETE, PARTIAL = ".complete.json", ".partial.json"
SIGN_S = 1.0
"""How often a process that waits for another gives a sign of life."""


class CachedModel(msgspec.Struct, frozen=True):
    """What a model consists of."""

    name: str
    commit: str
    """Of its repository; all files are of this one."""
    files: tuple[RemoteFile, ...]
    """Those of a complete model; of one that is not, those it may need, as they are listed at this commit."""


class ModelCache:
    """The models in one folder. Names are ``org/name`` or ``org/name@revision``."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def locate(self, name: str) -> Path:
        """Return the folder of a model, whether or not there is one."""
        return self._folder / _slug(name)

    def find(self, name: str) -> Path | None:
        """Return the folder of a model that is complete here, else None."""
        path = self.locate(name)
        record = _read_record(path / COMPLETE)
        return path if record is not None and _holds(path, record) else None

    def find_partial(self, name: str) -> StoredModel | None:
        """Return a model of which only a part is here, else None."""
        record = self.read_begun(name)
        return _describe_partial(self.locate(name), record) if record else None

    def read_begun(self, name: str) -> CachedModel | None:
        """Return what belongs to a model of which only a part is here, else None."""
        return None if self.find(name) else _read_record(self.locate(name) / PARTIAL)

    def list_weights(self, name: str) -> dict[str, str]:
        """Return the hub's digests of the files of weights of a model of which at least a part is here."""
        path = self.locate(name)
        record = _read_record(path / COMPLETE) or _read_record(path / PARTIAL)
        files = record.files if record else ()
        return {file.name: file.sha256 or file.blob for file in files if file.name.endswith(".safetensors")}

    def stored(self) -> list[StoredModel]:
        """Return the models that are complete here, sorted by name."""
        models = []
        for path, record in self._read_records(COMPLETE):
            if _holds(path, record):
                size = sum(file.size for file in record.files)
                models.append(StoredModel(name=record.name, path=path, size_bytes=size))
        return models

    def stored_partial(self) -> list[StoredModel]:
        """Return the models of which only a part is here, sorted by name."""
        found = [(path, record) for path, record in self._read_records(PARTIAL) if not self.find(record.name)]
        return [_describe_partial(path, record) for path, record in found]

    @contextmanager
    def lock(self, name: str, progress: Progress) -> Iterator[None]:
        """Wait until no other process changes this model, telling of it, and keep others waiting meanwhile."""
        path = self._folder / ".locks" / f"{_slug(name)}.lock"
        path.parent.mkdir(parents=True, exist_ok=True)
        lock, task = FileLock(path), f"wait for another download of {name}"
        has_waited = False
        while True:
            with suppress(Timeout):
                lock.acquire(timeout=SIGN_S)
                break
            has_waited = True
            progress(task, 0, 1, "items")
        try:
            if has_waited:
                progress(task, 1, 1, "items")
            yield
        finally:
            lock.release()

    def has_weights(self, name: str) -> bool:
        """Return whether a byte of the weights of a model is here."""
        path = self.locate(name)
        return any(map(_measure, (*path.glob("*.safetensors"), *path.glob("*.safetensors.part"))))

    def begin(self, name: str, commit: str, files: Sequence[RemoteFile]) -> CachedModel:
        """Make a folder for a model, without what is there of another commit; return the record that is put into it."""
        path, record = self.locate(name), CachedModel(name, commit, tuple(files))
        before = self.read_begun(name) or _read_record(path / COMPLETE)
        if path.is_dir() and (before is None or before.commit != commit):
            _delete(path)
        path.mkdir(parents=True, exist_ok=True)
        _write_record(path / PARTIAL, record)
        (path / COMPLETE).unlink(missing_ok=True)  # something of it must have been lost
        return record

    def complete(self, name: str, files: Sequence[RemoteFile]) -> None:
        """Turn a model whose ``files`` are all here and checked into a complete one."""
        path, begun = self.locate(name), self.read_begun(name)
        assert begun is not None, "it was begun"
        _write_record(path / COMPLETE, CachedModel(name, begun.commit, tuple(files)))
        (path / PARTIAL).unlink()

    def remove(self, name: str) -> int:
        """Delete a model, or what is here of one, and return the bytes freed.

        Raises:
            UnknownName: if nothing of it is here.
        """
        path = self.locate(name)
        if not path.is_dir():
            names = ", ".join(model.name for model in (*self.stored(), *self.stored_partial())) or "nothing"
            raise UnknownName(f"{name} is not stored on this machine", f"stored here: {names}")
        return _delete(path)

    def _read_records(self, kind: str) -> list[tuple[Path, CachedModel]]:
        """Return the records of a kind with the folders they are in, sorted by the names of the models."""
        paths = [path.parent for path in self._folder.glob(f"*/{kind}")]
        found = [(path, record) for path in paths if (record := _read_record(path / kind))]
        return sorted(found, key=lambda pair: pair[1].name)


def _slug(name: str) -> str:
    repo, at, revision = name.partition("@")
    return repo.replace("/", "--") + at + quote(revision, safe="")


def _read_record(path: Path) -> CachedModel | None:
    with suppress(OSError, msgspec.MsgspecError):
        return msgspec.json.decode(path.read_bytes(), type=CachedModel)
    return None


def _write_record(path: Path, record: CachedModel) -> None:
    draft = path.with_name(f"{path.name}.new")
    draft.write_bytes(msgspec.json.encode(record))
    draft.replace(path)


def _holds(path: Path, record: CachedModel) -> bool:
    with suppress(OSError):
        return all((path / file.name).stat().st_size == file.size for file in record.files)
    return False


def _describe_partial(path: Path, record: CachedModel) -> StoredModel:
    files: Sequence[RemoteFile] = record.files
    with suppress(ParallaxError):  # until the index is here, which says what of it is needed
        files = [*choose_files(record.name, files), *choose_weights(record.name, files, path)]
    here = sum(_measure(path / file.name) + _measure(path / f"{file.name}.part") for file in files)
    total = sum(file.size for file in files)
    return StoredModel(name=record.name, path=path, size_bytes=here, total_bytes=total)


def _delete(path: Path) -> int:
    """Delete the folder of a model, and return the bytes freed."""
    if path.is_symlink():
        # Somebody moved the model elsewhere: what lies outside our folder is not ours to delete.
        path.unlink()
        return 0
    freed = sum(map(_measure, path.iterdir()))
    # First, so that a deletion that is interrupted leaves nothing that looks complete.
    (path / COMPLETE).unlink(missing_ok=True)
    shutil.rmtree(path)
    return freed


def _measure(path: Path) -> int:
    """Return the bytes that a file takes, without its holes; 0 if there is none."""
    if not path.is_file():
        return 0
    present = read_present(path.with_suffix("") if path.suffix == ".part" else path)
    return path.lstat().st_size if present is None else present.total
